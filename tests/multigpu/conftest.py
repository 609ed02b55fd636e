"""Worlds of several processes with CUDA: on one GPU that takes turns between them, and on a GPU for each. What a host
has not the GPUs for is deselected."""

import torch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
NEEDED = {"one gpu": 1, "gpus": 2}


def pytest_collection_modifyitems(config, items):
    few = [i for i in items if hasattr(i, "callspec") and NEEDED.get(i.callspec.params.get("on"), 0) > GPUS]
    config.hook.pytest_deselected(items=few)
    items[:] = [item for item in items if item not in set(few)]
