"""Calls that are worked out once and then replayed: what keeps an eager call cheap.

The contract, the geometry and the choice of a compiled kernel depend on shapes, strides, dtypes, alignment, device and
plain arguments alone. So if a call came down to one launch over its own inputs and outputs, or to several over these
and memory from `scratch`, the same metadata again means the same launches: allocate, launch, done, in half the time.
Other calls (copies, memory from elsewhere, a device that is not the current one, one tensor given twice) are worked out
every time. Only launches are seen here: a launcher that touches its outputs or its scratch in another way as well, say
to zero them first, must not be replayed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_PLAIN = frozenset((int, bool, float, str, type(None), torch.dtype))  # no tensors: `isinstance` takes ten times as long
MOST = 4096  # remembered calls of one op: every new row count is one
STREAM = object()  # stands for the current stream among the arguments of a launch
current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)  # the second in builds for the CPU
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_recorder = threading.local()

try:
    from torch._C._dynamo.guards import _empty_strided_cuda as _empty  # torch.empty costs three times as much
except ImportError:

    def _empty(shape: tuple, strides: tuple, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


class Launch(NamedTuple):
    """`function(*arguments)` launched a kernel. by_pointer: it takes tensors as addresses."""

    function: Callable
    arguments: Sequence[Any]
    by_pointer: bool


class _Replay(NamedTuple):
    outputs: list[tuple]  # shape, strides, dtype of each
    single: bool  # one tensor, not a tuple
    scratch: int  # bytes of all pieces together
    fire: Callable  # (tensors, their addresses): inputs, outputs, scratch


def record(launch: Launch) -> None:
    """A backend calls this after each launch."""
    launches = getattr(_recorder, "launches", None)
    if launches is not None:
        launches.append(launch)


def scratch(device: torch.device, *sizes: tuple[int, torch.dtype]) -> list[Tensor]:
    """Uninitialised tensors [n] for a launcher's own use, in one allocation, as those of all calls are when they are
    replayed. A launcher that takes all its memory here is replayed with several launches as well."""
    ends = [0]
    for n, dtype in sizes:
        ends.append(ends[-1] + -(-n * dtype.itemsize // 256) * 256)
    whole = torch.empty(ends[-1], dtype=torch.uint8, device=device)
    views = [whole[b : b + n * t.itemsize].view(t) for b, (n, t) in zip(ends, sizes, strict=False)]
    pieces = getattr(_recorder, "scratch", None)
    if pieces is not None:
        pieces.append((ends[-1], list(zip(views, ends, strict=False))))
    return views


def run(known: _Replay, tensors: list[Tensor], pointers: list[int]) -> Any:
    """The launches again, with these inputs. Both lists grow by what is allocated here."""
    outputs = [_empty(*description) for description in known.outputs]
    tensors += outputs
    if known.scratch:
        tensors.append(_empty((known.scratch,), (1,), torch.uint8))
    pointers += [t.data_ptr() for t in tensors[len(pointers) :]]
    known.fire(tensors, pointers)
    return outputs[0] if known.single else tuple(outputs)


def replayed(launcher: Callable) -> Callable:
    """Decorator of an op's launcher. `.replay(args)` gives the outputs, or None for a call that is not remembered."""
    replays: dict[tuple, _Replay] = {}

    def look_up(args: tuple) -> tuple[_Replay | None, list[Tensor], list[int]]:
        """What is remembered of such a call, its tensors and their addresses."""
        key = [current_device()]
        tensors = []
        pointers = []
        for a in args:
            kind = type(a)
            if kind is Tensor or (kind not in _PLAIN and isinstance(a, Tensor)):
                pointer = a.data_ptr()
                tensors.append(a)
                pointers.append(pointer)
                key += (a.shape, a.stride(), a.dtype, a.get_device(), pointer & 15)
            else:
                key.append(a)
        return replays.get(tuple(key)), tensors, pointers

    def replay(args: tuple) -> Any:
        known, tensors, pointers = look_up(args)
        return None if known is None else run(known, tensors, pointers)

    @functools.wraps(launcher)
    def call(*args: Any) -> Any:
        if not any(isinstance(a, Tensor) and a.is_cuda for a in args):  # interpreted or emulated
            return launcher(*args)
        result = replay(args)
        return _work_out(launcher, args, replays) if result is None else result

    call.replay, call.replays, call.look_up = replay, replays, look_up
    return call


def _work_out(launcher: Callable, args: tuple, replays: dict[tuple, _Replay]) -> Any:
    """Call the launcher, and remember the call if it can be replayed."""
    device = current_device()
    outer = getattr(_recorder, "launches", None), getattr(_recorder, "scratch", None)
    _recorder.launches, _recorder.scratch = launches, pieces = [], []
    try:
        result = launcher(*args)
    finally:
        _recorder.launches, _recorder.scratch = outer
    if outer[0] is not None:
        outer[0].extend(launches)
        outer[1].extend(pieces)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *outputs]
    position = {id(t): f"[{i}]" for i, t in enumerate(tensors)}
    distinct = len(position) == len(tensors)
    whole = 0  # bytes: one allocation serves all pieces
    for n, views in pieces:
        position.update((id(t), f"[{len(tensors)}] + {whole + offset}") for t, offset in views)
        whole += n
    if (
        not launches
        or (len(launches) > 1 and not pieces)
        or not distinct
        or any(isinstance(a, Tensor) and id(a) not in position for launch in launches for a in launch.arguments)
        or any(pieces and not launch.by_pointer for launch in launches)
        or any(t.get_device() != device for t in tensors)
        or any(t.numel() == 0 for t in outputs)
    ):
        return result
    key: list[Any] = [device]
    for a in args:
        key += (a.shape, a.stride(), a.dtype, device, a.data_ptr() & 15) if isinstance(a, Tensor) else (a,)
    if len(replays) >= MOST:
        replays.clear()
    replays[tuple(key)] = _Replay(
        [(tuple(t.shape), t.stride(), t.dtype) for t in outputs],
        isinstance(result, Tensor),
        max(whole, 1) if pieces else 0,
        _fire(launches, position, device),
    )
    return result


def _fire(launches: list[Launch], position: dict[int, str], device: int) -> Callable:
    """The launches as a function of the tensors: their calls written out, which is quicker than putting lists
    together."""
    names: dict[str, Any] = {"current": current_stream}
    calls = []
    for i, launch in enumerate(launches):
        names[f"function{i}"] = launch.function
        words = []
        for j, a in enumerate(launch.arguments):
            if isinstance(a, Tensor):
                words.append(f"{'pointers' if launch.by_pointer else 'tensors'}{position[id(a)]}")
            elif a is STREAM:
                words.append("stream")
            else:
                names[f"a{i}_{j}"] = a
                words.append(f"a{i}_{j}")
        calls.append(f"function{i}({', '.join(words)})")
    return eval(f"lambda tensors, pointers: (lambda stream: ({', '.join(calls)},))(current({device}))", names)
