"""Calls that are worked out once and then replayed: what keeps an eager call cheap.

The contract, the geometry and the choice of a compiled kernel depend on shapes, strides, dtypes, alignment, device and
plain arguments alone. So if a call came down to one launch over its own inputs and outputs, the same metadata again
means the same launch: allocate, launch, done, in half the time. Other calls (copies, two launches, a device that is
not the current one, one tensor given twice) are worked out every time. Only launches are seen here: a launcher that
touches its outputs in another way as well, say to zero them first, must not be replayed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    fire: Callable  # (tensors, their addresses), inputs before outputs


def record(launch: Launch) -> None:
    """A backend calls this after each launch."""
    launches = getattr(_recorder, "launches", None)
    if launches is not None:
        launches.append(launch)


def replayed(launcher: Callable) -> Callable:
    """Decorator of an op's launcher. `.replay(args)` gives the outputs, or None for a call that is not remembered."""
    replays: dict[tuple, _Replay] = {}

    def replay(args: tuple) -> Any:
        device = current_device()
        key = [device]
        tensors = []
        pointers = []
        for a in args:
            if isinstance(a, Tensor):
                pointer = a.data_ptr()
                tensors.append(a)
                pointers.append(pointer)
                key += (a.shape, a.stride(), a.dtype, a.get_device(), pointer & 15)
            else:
                key.append(a)
        known = replays.get(tuple(key))
        if known is None:
            return None
        outputs = [_empty(*description) for description in known.outputs]
        tensors += outputs
        pointers += [t.data_ptr() for t in outputs]
        known.fire(tensors, pointers)
        return outputs[0] if known.single else tuple(outputs)

    @functools.wraps(launcher)
    def call(*args: Any) -> Any:
        if not any(isinstance(a, Tensor) and a.is_cuda for a in args):  # interpreted or emulated
            return launcher(*args)
        result = replay(args)
        return _work_out(launcher, args, replays) if result is None else result

    call.replay, call.replays = replay, replays
    return call


def _work_out(launcher: Callable, args: tuple, replays: dict[tuple, _Replay]) -> Any:
    """Call the launcher, and remember the call if it can be replayed."""
    device = current_device()
    outer = getattr(_recorder, "launches", None)
    _recorder.launches = launches = []
    try:
        result = launcher(*args)
    finally:
        _recorder.launches = outer
    if outer is not None:
        outer.extend(launches)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *outputs]
    position = {id(t): i for i, t in enumerate(tensors)}
    if (
        len(launches) != 1
        or len(position) != len(tensors)
        or any(isinstance(a, Tensor) and id(a) not in position for a in launches[0].arguments)
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
        _fire(launches[0], position, device),
    )
    return result


def _fire(launch: Launch, position: dict[int, int], device: int) -> Callable:
    """The launch as a function of the tensors: its call written out, which is quicker than putting lists together."""
    names: dict[str, Any] = {"function": launch.function, "stream": current_stream}
    words = []
    for i, a in enumerate(launch.arguments):
        if isinstance(a, Tensor):
            words.append(f"{'pointers' if launch.by_pointer else 'tensors'}[{position[id(a)]}]")
        elif a is STREAM:
            words.append(f"stream({device})")
        else:
            names[f"a{i}"] = a
            words.append(f"a{i}")
    return eval(f"lambda tensors, pointers: function({', '.join(words)})", names)
