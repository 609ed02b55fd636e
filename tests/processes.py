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


def device() -> torch.device:
    """Of this process in its world."""
    return torch.device("cuda", dist.get_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def run(
    world: int, checks: list[Callable[[int, int], None]], limit: float = 300, backend: str = "gloo"
) -> dict[int, dict[str, str]]:
    """Run `checks`, functions of (rank, world size), one after another in `world` processes.

    Returns what failed, rank -> name of the check -> traceback. After a failure on one process the others wait in
    vain: they report that, and the world ends. A process that dies or hangs is reported under "exit".
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_main, args=(rank, world, folder, checks, theirs, backend), daemon=True)
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


def _main(rank: int, world: int, folder: str, checks: list, pipe: Any, backend: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    if dist.is_initialized():  # the world of one that the specs make when they are imported
        dist.destroy_process_group()
    store = dist.FileStore(os.path.join(folder, "store"), world)
    timeout = datetime.timedelta(seconds=CHECK_TIMEOUT)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    failed: dict[str, str] = {}
    for check in checks:
        try:
            torch.manual_seed(0)
            check(rank, world)
        except Exception:
            failed[check.__name__] = traceback.format_exc()
        # Checks are collective: one that failed somewhere may have left the others in the middle of an exchange.
        bad = torch.tensor(len(failed), device=device())
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


def report(failed: dict[int, dict[str, str]]) -> str:
    return "\n".join(f"rank {r}, {name}:\n{text}" for r, found in failed.items() for name, text in found.items())
