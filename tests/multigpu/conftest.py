"""These tests need two GPUs; elsewhere they are deselected."""

import pathlib

import torch

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    if torch.cuda.is_available() and torch.cuda.device_count() >= 2:
        return
    mine = [item for item in items if HERE in item.path.parents]
    config.hook.pytest_deselected(items=mine)
    items[:] = [item for item in items if item not in set(mine)]
