"""Processes of a group meet: agreement on what is about to be exchanged, barriers that name who is missing.

Both go through the store of torch.distributed (TCPStore, FileStore, ..), which works before any data moves, when a peer
is dead, and beside whatever the GPU is doing.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from tle_ops import _meta

Result = TypeVar("Result")
DEFAULT_TIMEOUT = 300.0  # seconds that a process waits for its peers
CHECKS = ("always", "first", "never")
_timeout = DEFAULT_TIMEOUT
_check: str | None = None  # None: "always" where data moves by gloo, else "first"
_GAVE_UP = "gave up: "
_ROLL_CALL = 5.0  # seconds for the survivors to report after a failed exchange
_members: dict[str, Member] = {}
_lock = threading.Lock()


class PeerError(RuntimeError):
    """A process of the group is dead, late, or does something else than the others."""


def set_timeout(seconds: float) -> None:
    """How long a process waits for its peers before it raises PeerError."""
    global _timeout
    _meta.require_seconds("set_timeout", "seconds", seconds)
    if not seconds:
        raise ValueError("set_timeout: seconds must be positive, got 0")
    _timeout = float(seconds)


def get_timeout() -> float:
    return _timeout


def set_check(when: str | None) -> None:
    """When the processes compare shapes, dtypes and options before data moves: at every call ("always"), at the first
    call of each kind ("first"), "never". None: "always" over gloo, else "first", since it costs a round trip through
    the store, which a GPU would wait for."""
    global _check
    if when is not None and when not in CHECKS:
        raise ValueError(f"set_check: when must be one of {', '.join(CHECKS)} or None, got {when!r}")
    _check = when


def facts(x: Tensor, **options: Any) -> dict[str, Any]:
    """What all processes must have alike."""
    return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch."), "device": x.device.type, **options}


class Member:
    """This process among `ranks` of the world, whether there is a process group of them or not."""

    def __init__(self, name: str, ranks: tuple[int, ...], group: dist.ProcessGroup | None) -> None:
        self.name, self.ranks, self.group = name, ranks, group
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        self.store = dist.PrefixStore(f"tle/{name}", dist.distributed_c10d._get_default_store())
        self.by_gloo = group is not None and dist.get_backend(group) == "gloo"
        self.parent: Member | None = None  # the world it was found in
        self.counts: dict[str, int] = {}
        self.agreed: set[tuple] = set()

    def _next(self, kind: str) -> int:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.counts[kind]

    def meet(self, kind: str, value: str, what: str, timeout: float = 0.0) -> list[str]:
        """The values of all processes, in order. PeerError names `what` and those who do not come in time."""
        if self.size == 1:
            return [value]
        timeout = timeout or _timeout
        number = self._next(kind)
        keys = [f"{kind}/{number}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], value)
        try:
            missing = self._wait(keys, timeout)
            if missing:
                self.store.set(keys[self.rank], f"{_GAVE_UP}{self._called(missing)} did not arrive")
                raise PeerError(f"{what}: {self._called(missing)} did not arrive within {timeout:g} s")
            values = [v.decode() for v in self.store.multi_get(keys)]
        except PeerError:
            raise
        except RuntimeError as e:
            raise PeerError(f"{what}: the store of torch.distributed failed: {e}") from e
        for rank, v in enumerate(values):
            if v.startswith(_GAVE_UP):
                raise PeerError(f"{what}: {self._called([rank])} {v}")
        if number > 1:  # everyone is here, so everyone has read the round before
            self.store.delete_key(f"{kind}/{number - 1}/{self.rank}")
        return values

    def _wait(self, keys: list[str], timeout: float) -> list[int]:
        """Until all keys are there; the ranks of those that are not, when the time is over."""
        try:
            self.store.wait(keys, datetime.timedelta(seconds=timeout))
        except RuntimeError:  # DistStoreError, a subclass, when the time is over
            return [rank for rank, key in enumerate(keys) if not self.store.check([key])]
        return []

    def barrier(self, name: str = "", timeout: float = 0.0) -> None:
        self.meet("barrier", "here", f"distributed_barrier {name or self.counts.get('barrier', 0) + 1}", timeout)

    def _called(self, ranks: Iterable[int]) -> str:
        """ "rank 1", or with another numbering in the world "rank 1 (5 in the world)" """
        names = [f"{r}" if self.ranks[r] == r else f"{r} ({self.ranks[r]} in the world)" for r in ranks]
        return f"rank{'s' * (len(names) > 1)} {', '.join(names)}"

    def agree(self, op: str, facts: dict[str, Any], per_rank: Any = None) -> list[Any]:
        """ValueError on every process, before data moves, unless all have the same op and facts. Returns `per_rank` of
        all, which may differ."""
        if self.size == 1:
            return [per_rank]
        text = json.dumps([op, {k: str(v) for k, v in facts.items()}])
        values = self.meet("agree", json.dumps([text, per_rank]), f"{op} (call {self.counts.get('agree', 0) + 1})")
        found = [json.loads(v) for v in values]
        if any(t != text for t, _ in found):
            self._disagree(op, [json.loads(t) for t, _ in found])
        return [mine for _, mine in found]

    def _disagree(self, op: str, found: list[list]) -> None:
        columns = {"op": [name for name, _ in found]}
        for key in dict.fromkeys(k for _, facts in found for k in facts):
            columns[key] = [facts.get(key, "nothing") for _, facts in found]
        for key, values in columns.items():
            different: dict[str, list[int]] = {}
            for rank, v in enumerate(values):
                different.setdefault(v, []).append(rank)
            if len(different) > 1:
                got = ", ".join(f"{v} on {self._called(ranks)}" for v, ranks in different.items())
                raise ValueError(f"{op}: {key} must be the same on every rank of the group, got {got}")

    def check(self, op: str, x: Tensor, **options: Any) -> None:
        """`agree` on x and the options, as often as `set_check` says."""
        when = _check or ("always" if self.by_gloo else "first")
        if when == "never":
            return
        key = (op, x.shape, x.dtype, x.is_cuda, *options.values())
        if when == "first" and key in self.agreed:
            return
        self.agree(op, facts(x, **options))
        self.agreed.add(key)

    def exchange(self, op: str, run: Callable[[], Result]) -> Result:
        """run(), which talks to the peers. If that breaks, PeerError names the dead."""
        try:
            return run()
        except (RuntimeError, dist.DistError) as e:
            raise PeerError(f"{op}: the exchange failed, {self._roll_call()}: {' '.join(str(e).split())[:300]}") from e

    def _roll_call(self) -> str:
        """Who still lives, after a failure."""
        try:
            number = self._next("roll")
            self.store.set(f"roll/{number}/{self.rank}", "here")
            keys, deadline = {r: f"roll/{number}/{r}" for r in range(self.size)}, time.monotonic() + _ROLL_CALL
            while keys and time.monotonic() < deadline:
                keys = {r: key for r, key in keys.items() if not self.store.check([key])}
                time.sleep(0.05)
        except RuntimeError:
            return "and the store of torch.distributed is gone"
        return f"{self._called(keys)} did not answer" if keys else "though every rank answers"


def member(op: str, group: str) -> Member:
    """This process in the process group of that name."""
    found = _meta.process_group(op, group)
    with _lock:
        known = _members.get(found.group_name)
        if known is None or known.group is not found:  # a new world under an old name
            ranks = tuple(dist.get_process_group_ranks(found))
            known = _members[found.group_name] = Member(found.group_name, ranks, found)
        return known


def members(op: str, ranks: tuple[int, ...]) -> Member:
    """This process among these ranks of the world: enough to meet them."""
    world = member(op, "")
    if len(ranks) == world.size:
        return world
    name = f"{world.name} of {','.join(map(str, ranks))}"
    with _lock:
        known = _members.get(name)
        if known is None or known.parent is not world:
            known = _members[name] = Member(name, ranks, None)
            known.parent = world
        return known


def forget() -> None:
    """Drop what is known of all groups."""
    with _lock:
        _members.clear()
