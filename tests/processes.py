"""Worlds of several processes on one machine, for tests: they start once and run many checks."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

CHECK_TIMEOUT = 60  # seconds in which all processes must finish a check
_CONTEXT = multiprocessing.get_context("forkserver")  # imports PyTorch once for all worlds
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.tensor", "tle_ops.distributed"])


_device = torch.device("cpu")


def device() -> torch.device:
    """Of this process in its world."""
    return _device


def run(
    world: int, checks: list[Callable[[int, int], None]], limit: float = 300, on: str = "cpu"
) -> dict[int, dict[str, str]]:
    """Run `checks`, functions of (rank, world size), one after another in `world` processes.

    on: "cpu": gloo. "gpus": NCCL, a GPU for each process. "one gpu": all processes on the first GPU, which takes turns
    between them; NCCL refuses that, so gloo; symmetric memory reaches every process as it does between GPUs.

    Returns what failed, rank -> name of the check -> traceback. After a failure on one process the others wait in
    vain: they report that, and the world ends. A process that dies or hangs is reported under "exit".
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_main, args=(rank, world, folder, checks, theirs, on), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        failed: dict[int, dict[str, str]] = {}
        try:
            for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
                result = {"exit": f"no answer within {limit} s"}
                if pipe.poll(limit):
                    try:
                        result = pipe.recv()
                    except EOFError:
                        process.join(10)
                        result = {"exit": f"exit code {process.exitcode}"}
                if result:
                    failed[rank] = result
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()
                    process.join()
    return failed


def _main(rank: int, world: int, folder: str, checks: list, pipe: Any, on: str) -> None:
    global _device
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if dist.is_initialized():  # the world of one that the specs make when they are imported
        dist.destroy_process_group()
    store = dist.FileStore(os.path.join(folder, "store"), world)
    timeout = datetime.timedelta(seconds=CHECK_TIMEOUT)
    if on != "cpu":
        _device = torch.device("cuda", rank if on == "gpus" else 0)
        torch.cuda.set_device(_device)
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1" if on == "one gpu" else "0"
    dist.init_process_group(
        "nccl" if on == "gpus" else "gloo", store=store, rank=rank, world_size=world, timeout=timeout
    )
    failed: dict[str, str] = {}
    for check in checks:
        try:
            torch.manual_seed(0)
            check(rank, world)
        except Exception:
            failed[check.__name__] = traceback.format_exc()
        # Checks are collective: one that failed somewhere may have left the others in the middle of an exchange.
        bad = torch.tensor(len(failed), device=device() if on == "gpus" else "cpu")
        try:
            dist.all_reduce(bad)
        except Exception:
            failed.setdefault(check.__name__, f"the others did not come\n{traceback.format_exc()}")
            break
        if bad:
            break
    pipe.send(failed)
    pipe.close()
    if not failed:
        dist.destroy_process_group()
    os._exit(0)  # whatever threads a broken group has left


def assert_all_pass(world: int, checks: list[Callable[[int, int], None]], limit: float = 300, on: str = "cpu") -> None:
    failed = run(world, checks, limit, on)
    assert not failed, report(failed)


def report(failed: dict[int, dict[str, str]]) -> str:
    return "\n".join(f"rank {r}, {name}:\n{text}" for r, found in failed.items() for name, text in found.items())
