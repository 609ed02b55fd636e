"""The distributed ops and meshes on 2 and 4 gloo processes. One world of processes runs all checks of a test."""

import pytest

from tests import distributed_checks, processes


@pytest.mark.parametrize("world", [2, 4])
def test_operators(world):
    failed = processes.run(world, distributed_checks.CHECKS, limit=120)
    assert not failed, processes.report(failed)
