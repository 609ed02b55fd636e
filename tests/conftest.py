"""Without a GPU, Triton kernels run in Triton's interpreter and tests marked `gpu` are deselected."""

import os
import zlib

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # they ignore edits to backwards, fakes and bodies


def pytest_configure(config):
    if not CUDA:
        from tests import interpreter

        interpreter.install()
    torch.set_num_threads(1)  # the workers of xdist share the cores


def pytest_collection_modifyitems(config, items):
    if CUDA:
        return
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=gpu)
    items[:] = [item for item in items if item not in set(gpu)]


@pytest.fixture(autouse=True)
def seed(request):
    """The same random numbers for a test whatever runs before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param
