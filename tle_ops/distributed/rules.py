"""The sharding rules of all operators, one table per family. The notation is in `_rule.py`.

An op works without communication if its tensors are sharded by a dimension with a lower-case label (rows, mostly). Any
other placement is redistributed first, by the cheapest of the ways that the rule allows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tle_ops._meta import FP8_MAX
from tle_ops.distributed import _across
from tle_ops.distributed._rule import Call, Rule, Terms


def _names(rank: int) -> list[str]:
    return [f"dim{d}" for d in range(rank)]


# --- elementwise -----------------------------------------------------------------------------------------------------
def _broadcast(call: Call) -> Terms:
    """A dimension of size 1 beside a larger one is needed whole."""
    shape = call.outputs[0].shape
    out = _names(len(shape))
    inputs = tuple(
        tuple(label if n == m else "W" for label, n, m in zip(out[len(shape) - t.dim() :], t.shape,
              shape[len(shape) - t.dim() :], strict=True))
        for t in (call.x, call.y)
    )  # fmt: skip
    return inputs, (tuple(out),)


def _scale_cast_linear(call: Call) -> tuple:
    """Clamped codes do not add up."""
    return (("x",),) if call.dtype not in FP8_MAX and call.x.dtype not in FP8_MAX else ()


ELEMENTWISE = {
    "add": Rule(_broadcast, lambda call: (("x", "y"),) if call.outputs[0].dtype.is_floating_point else ()),
    "scale_cast": Rule("... -> ...", _scale_cast_linear),
}

# --- activations: a packed input has gate and up in one dimension, which a shard would tear apart --------------------
SWIGLU = {
    # Clamped by a limit, `up` does not add up.
    "swiglu": Rule("..., ... -> ...", lambda call: (("up",),) if call.limit is None else ()),
    "swiglu_bwd": Rule("..., ..., ... -> ..., ...", lambda call: (("dy",),)),
    "swiglu_packed": Rule("...N -> ...N"),
    "swiglu_packed_bwd": Rule("...N, ...N -> ...N", lambda call: (("dy",),)),
    "geglu": Rule("..., ... -> ...", lambda call: (("up",),)),
    "geglu_bwd": Rule("..., ..., ... -> ..., ...", lambda call: (("dy",),)),
    "geglu_packed": Rule("...N -> ...N"),
    "geglu_packed_bwd": Rule("...N, ...N -> ...N", lambda call: (("dy",),)),
}


# --- norms: rows alone, or columns with all-reduced statistics -------------------------------------------------------
def _row(call: Call) -> str:
    """The label of the last dimension: it may be split where the parts are equal."""
    rows = next(a for a in call.args.values() if isinstance(a, Tensor))
    return "n" if call.splits(rows.shape[-1]) else "N"


def _or_nothing(label: str, dtype: torch.dtype | None) -> str:
    return "-" if dtype is None else label  # a gradient that nobody asked for is empty


def _norm_bwd(inputs: str) -> Any:
    """`inputs` with n for the columns; after dx come dweight and, if there is one, dbias"""

    def form(call: Call) -> str:
        dtypes = [call.args[a] for a in ("dweight_dtype", "dbias_dtype") if a in call.args]
        outputs = ", ".join(["...n", *(_or_nothing("n", d) for d in dtypes)])
        return f"{inputs} -> {outputs}".replace("n", _row(call))

    return form


def _norm(form: str) -> Any:
    return lambda call: form.replace("n", _row(call))


def _add_bwd_linear(call: Call) -> tuple:
    return (("dy", "dnew_residual"),) if call.dnew_residual is not None else (("dy",),)


NORM = {
    "rms_norm": Rule(_norm("...n, n -> ...n"), across={"n": _across.rms_norm}),
    "add_rms_norm": Rule(_norm("...n, ...n, n -> ...n, ...n"), across={"n": _across.add_rms_norm}),
    "layer_norm": Rule(_norm("...n, n, n -> ...n"), across={"n": _across.layer_norm}),
    "rms_norm_bwd": Rule(_norm_bwd("...n, ...n, n"), lambda call: (("dy",),), {"n": _across.rms_norm_bwd}),
    "add_rms_norm_bwd": Rule(_norm_bwd("...n, ...n, ...n, n"), _add_bwd_linear, {"n": _across.add_rms_norm_bwd}),
    "layer_norm_bwd": Rule(_norm_bwd("...n, ...n, n"), lambda call: (("dy",),), {"n": _across.layer_norm_bwd}),
}


# --- rope: positions with their tables, heads alone ------------------------------------------------------------------
def _rope(call: Call) -> str:
    batch = "" if call.cos.dim() == 2 else "..."
    return f"...shD, {batch}sR, {batch}sR -> ...shD"


ROPE = {
    "rope": Rule(_rope, lambda call: (("x",),)),
    "rope_bwd": Rule(_rope, lambda call: (("dy",),)),
}


# --- quantization: codes and their scales lie together; a shard may not cut a group ----------------------------------
def _groups(call: Call, size: int, group_size: int) -> bool:
    return group_size != -1 and call.splits(size, group_size)


def _per_token(form: str) -> Any:
    def of(call: Call) -> str:
        x = call.args.get("x", call.args.get("q"))
        return form.replace("n", "n" if _groups(call, x.shape[-1], call.group_size) else "N")

    return of


def _per_block(form: str) -> Any:
    def of(call: Call) -> str:
        M, N = call.args.get("x", call.args.get("q")).shape[-2:]
        m = "m" if _groups(call, M, call.block_size) else "M"
        return form.replace("m", m).replace("n", "n" if _groups(call, N, call.block_size) else "N")

    return of


def _per_channel(form: str) -> Any:
    """Groups run down the rows of all leading dimensions, so only the first of these may be cut."""

    def of(call: Call) -> str:
        x = call.args.get("x", call.args.get("q"))
        if x.dim() == 1:
            return form.replace("r", "").replace("m", "M")
        first, rest = x.shape[0], math.prod(x.shape[1:-1])
        cut = call.group_size != -1 and call.splits(first) and first // call.processes * rest % call.group_size == 0
        m = "m" if cut else "M"
        return form.replace("r", m + "ABCDEFGHIJ"[: x.dim() - 2]).replace("m", m)

    return of


QUANT = {
    "per_token_cast_fp8": Rule(_per_token("...n -> ...n, ...n")),
    "per_token_cast_back": Rule(_per_token("...n, ...n -> ...n")),
    "fake_quant_fp8": Rule(_per_token("...n -> ...n")),
    "per_block_cast_fp8": Rule(_per_block("...mn -> ...mn, ...mn")),
    "per_block_cast_back": Rule(_per_block("...mn, ...mn -> ...mn")),
    "per_channel_cast_fp8": Rule(_per_channel("rc -> rc, mc")),
    "per_channel_cast_back": Rule(_per_channel("rc, mc -> rc")),
}
FUSED = {
    "swiglu_per_token_cast_fp8": Rule("...N -> ...N, ...G"),
    "rms_norm_per_token_cast_fp8": Rule("...N, N -> ...N, ...G"),
    "add_rms_norm_per_token_cast_fp8": Rule("...N, ...N, N -> ...N, ...G, ...N"),
}


# --- scans, selection, routing ---------------------------------------------------------------------------------------
def _along(call: Call, outputs: tuple[bool, ...]) -> Terms:
    """x with one dimension that the op works along; of each output, whether it still has that dimension."""
    rank = call.x.dim()
    names = _names(rank)
    dim = call.dim % max(rank, 1)
    if rank:
        names[dim] = "n" if call.splits(call.x.shape[dim]) else "N"
    without = tuple(names[:dim] + names[dim + 1 :])
    return (tuple(names),), tuple(tuple(names) if kept else without for kept in outputs)


def _cumsum(call: Call) -> Terms:
    inputs, (exclusive, total) = _along(call, (True, False))
    return inputs, (exclusive, total)


def _topk(call: Call) -> Terms:
    inputs, _ = _along(call, ())
    # The chosen lie on every process, not sharded.
    chosen = tuple("K" if label in "nN" else label for label in inputs[0])
    return inputs, (chosen, chosen)


def _selector(call: Call) -> str:
    return "...n, ..., ... -> ...K".replace("n", "n" if call.splits(call.scores.shape[-1]) else "N")


SCAN = {
    "cumsum": Rule(
        _cumsum,
        lambda call: (("x",),) if call.outputs[0].dtype.is_floating_point or not call.x.dtype.is_floating_point else (),
        {"n": _across.cumsum},
    ),
    "compact": Rule("...N, ...N -> ...N, ...N, ..."),
    "histogram": Rule("...n -> ...B"),  # each process counts its own part: a pending sum
}
TOPK = {
    "topk": Rule(_topk, across={"n": _across.topk}),
    "topk_selector": Rule(_selector, across={"n": _across.topk_selector}),
    "topk_gate": Rule("...E, E -> ...K, ...K"),
    "topk_gate_bwd": Rule("...K, ...E, ...K -> ...E", lambda call: (("dweights",),)),
}


# --- moe, tiles ------------------------------------------------------------------------------------------------------
def _everything(call: Call) -> Terms:
    """Slots are numbered over all tokens: nothing of it is local."""
    return (tuple("ABCDEFGH"[: call.topk_ids.dim()]),), (("S",), ("B",), ("O",))


def _tiles(call: Call) -> Terms:
    """A dimension that the tile covers whole may be sharded, with x and tile alike."""
    tile = tuple(call.args["shape"]) if "shape" in call.args else tuple(call.tile.shape)
    names = tuple(
        f"dim{d}" if n == t and call.splits(n) else "W" for d, (n, t) in enumerate(zip(call.x.shape, tile, strict=True))
    )
    return (names,) * (1 if "shape" in call.args else 2), (names,)


def _local_tile(call: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    """The tile's shape among local tensors: it covers what is there of a sharded dimension."""
    sizes = zip(call["shape"], call["x"].shape, local["x"].shape, strict=True)
    return {"shape": [here if here != n else t for t, n, here in sizes]}


MOE = {"moe_align": Rule(_everything)}
TILE = {
    "extract_tile": Rule(_tiles, lambda call: (("x",),), localize=_local_tile),
    "insert_tile": Rule(_tiles, lambda call: (("x", "tile"),)),
}

RULES: dict[str, Rule] = {
    op: rule
    for family in (ELEMENTWISE, SWIGLU, NORM, ROPE, QUANT, FUSED, SCAN, TOPK, MOE, TILE)
    for op, rule in family.items()
}

_LOCAL = "it moves data between processes itself: pass x.to_local()"
# Ops that have no meaning on a tensor which spans the processes, and why.
NOT_ON_DTENSORS: dict[str, str] = dict.fromkeys(
    (
        "remote",
        "remote_bwd",
        "remote_put",
        "ring_exchange",
        "distributed_barrier",
        "all_gather_fp8",
        "reduce_scatter_fp8",
    ),
    _LOCAL,
)
