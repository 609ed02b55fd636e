"""What contracts are made of: the decorator that records one, and the checks that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
AMAX_FLOOR = 1e-4  # the least amax of a group: a group of zeros gets a small scale in place of 0 / 0
FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
FLOAT_NAMES = "float32, bfloat16, float16 or float64"
FP8_NAMES = "float8_e4m3fn or float8_e5m2"
INTEGERS = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
INTEGER_NAMES = "bool, uint8, int8, int16, int32 or int64"
NUMBER_NAMES = "float32, bfloat16, float16, float64, bool, uint8, int8, int16, int32 or int64"


class Contract(NamedTuple):
    schema: str
    fn: Callable


CONTRACTS: dict[str, Contract] = {}


def contract(schema: str) -> Callable[[Callable], Callable]:
    """Record the decorated function as the contract of the op that `schema` names."""

    def record(fn: Callable) -> Callable:
        name = schema.split("(")[0]
        if name != fn.__name__ or name in CONTRACTS:
            raise TypeError(f"the contract of {name} must be one function of that name, got {fn.__name__}")
        CONTRACTS[name] = Contract(schema, fn)
        return fn

    return record


# --- checks ----------------------------------------------------------------------------------------------------------
def require(condition: bool | torch.SymBool, message: Callable[[], str]) -> None:
    """ValueError unless `condition`; also right for sizes that only the data will tell (unbacked symbols)."""
    if condition is not True:
        torch._check_value(condition, message)


def require_float(op: str, argument: str, x: Tensor) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"{op}: {argument} must be {FLOAT_NAMES}, got {dtype_name(x.dtype)}")


def require_fp8(op: str, argument: str, dtype: torch.dtype) -> None:
    if dtype not in FP8_MAX:
        raise TypeError(f"{op}: {argument} must be {FP8_NAMES}, got {dtype_name(dtype)}")


def require_same_device(op: str, x_name: str, x: Tensor, y_name: str, y: Tensor) -> None:
    if x.device != y.device:
        raise ValueError(f"{op}: {y_name} must be on the device of {x_name}, {x.device}, got {y.device}")


def require_shape(
    op: str, argument: str, x: Tensor, shape: Sequence[int | torch.SymInt], why: Callable[[], str] = str
) -> None:
    """why: what the message says between the shape that is wanted and the one that came."""

    def other() -> str:
        return f"{op}: {argument} must have shape {shape_text(shape)}{why()}, got {shape_text(x.shape)}"

    if x.dim() != len(shape):
        raise ValueError(other())
    for got, want in zip(x.shape, shape, strict=True):
        require(got == want, other)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_text(shape: Sequence[int | torch.SymInt]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def require_dim(op: str, argument: str, x: Tensor, least: int) -> None:
    if x.dim() < least:
        raise ValueError(
            f"{op}: {argument} must have at least {least} dimension{'s' * (least > 1)}, got shape {shape_text(x.shape)}"
        )


def require_number(op: str, argument: str, x: Tensor) -> None:
    if x.dtype not in FLOATS and x.dtype not in INTEGERS:
        raise TypeError(f"{op}: {argument} must be {NUMBER_NAMES}, got {dtype_name(x.dtype)}")


def wrap_dim(op: str, x: Tensor, dim: int) -> int:
    """`dim` counted from the front; a 0-D tensor has one dimension to name, as in PyTorch."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise ValueError(f"{op}: dim must be in [{-rank}, {rank - 1}], got {dim}")
    return dim % rank


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """What an op computes in: float64 if it is given float64 anywhere, else float32."""
    return torch.float64 if any(t is not None and t.dtype is torch.float64 for t in tensors) else torch.float32
