"""Runs an operator on DTensors by its rule: choose placements, redistribute, call it on the local tensors.

Registered with `torch.library.register_torch_dispatch`, below autograd: gradients come from the backward ops, which
have rules of their own. (`register_sharding` will not do: its cache knows an op by its first int arguments and leaves
out SymInt, lists and floats, so `topk` with another k would get the shapes of the first; and it cannot express an op
that communicates, as a merge of local top-ks does.)

Each mesh dimension is planned by itself: of all ways that the rule allows, the one that moves the fewest bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from tle_ops._meta import FP8_MAX
from tle_ops.distributed._rule import Call, Rule, by_name, may_shard, tensor_arguments, terms_of
from tle_ops.distributed.rules import NOT_ON_DTENSORS, RULES

_ACROSS_COST = 0.05  # of a tensor: what an op exchanges that works across a sharded dimension
_LIB = torch.library.Library("tle", "FRAGMENT")


class Plan(NamedTuple):
    inputs: tuple[tuple[Placement, ...] | None, ...]  # per tensor argument; None where there is no tensor
    outputs: tuple[tuple[Placement, ...], ...]
    across: tuple[str, tuple[int, ...]] | None  # the label that the op must work across, and the mesh dimensions


class Across:
    """What a local computation needs to know of a dimension that is sharded over `dims` of the mesh."""

    def __init__(self, mesh: DeviceMesh, dims: tuple[int, ...], run: Callable) -> None:
        self.mesh, self.dims, self.run = mesh, dims, run
        self.parts = math.prod(mesh.size(d) for d in dims)
        self.index = 0  # of this process's part
        for d in dims:
            self.index = self.index * mesh.size(d) + mesh.get_local_rank(d)

    def _exchange(self, local: Tensor, pending: Placement) -> Tensor:
        rest: list[Placement] = [Replicate()] * self.mesh.ndim  # of no account: only `dims` communicate
        placements = [pending if d in self.dims else p for d, p in enumerate(rest)]
        return redistribute(DTensor.from_local(local, self.mesh, placements, run_check=False), rest).to_local()

    def all_reduce(self, local: Tensor) -> Tensor:
        return self._exchange(local, Partial())

    def all_gather(self, local: Tensor, dim: int) -> Tensor:
        """The parts of all, in order along `dim`; they must be of one shape."""
        return self._exchange(local.contiguous(), Shard(dim % local.dim()))


def _cost(now: Placement, then: Placement, size: int) -> float:
    """Of a change of placement on one mesh dimension with `size` processes, in parts of the tensor's bytes."""
    if now == then:
        return 0.0
    if then.is_partial():
        return math.inf
    if now.is_replicate():
        return 0.0
    away = (size - 1) / size
    if now.is_partial():
        return 2 * away if then.is_replicate() else away
    return away if then.is_replicate() else away / size + 0.01


def _options(
    call: Call, rule: Rule, terms: tuple, now: list[Placement | None], names: tuple[str, ...]
) -> list[tuple[float, int, tuple, tuple, str | None]]:
    """The ways to place all tensors on one mesh dimension: extra cost, preference, placements of the arguments and of
    the outputs, and the label that is sharded."""
    inputs, outputs = terms
    labels = dict.fromkeys(label for term in (*inputs, *outputs) if term for label in term if may_shard(label))
    largest = max(a.numel() * a.dtype.itemsize for a in call.args.values() if isinstance(a, Tensor))

    def placed(term: tuple[str, ...] | None, label: str, absent: Placement) -> Placement:
        return Shard(term.index(label)) if term is not None and label in term else absent

    found = []
    for i, label in enumerate(labels):
        into = tuple(None if p is None else placed(t, label, Replicate()) for p, t in zip(now, inputs, strict=True))
        # What an output does not have of the label, it has summed: over this part, or, working across, over all.
        summed = Replicate() if label in rule.across else Partial()
        out = tuple(Replicate() if t is None else placed(t, label, summed) for t in outputs)
        extra = _ACROSS_COST * largest if label in rule.across else 0.0
        found.append((extra, i + 1, into, out, label))
    for group in rule.linear(call):
        kinds = {now[names.index(n)] for n in group}
        rounded = min(o.dtype.itemsize for o in call.outputs) < max(call.args[n].dtype.itemsize for n in group)
        if len(kinds) == 1 and _is_sum(kind := kinds.pop()) and not rounded:  # rounding summands costs accuracy
            into = tuple(
                None if p is None else kind if n in group else Replicate() for n, p in zip(names, now, strict=True)
            )
            found.append((0.0, 0, into, (kind,) * len(outputs), None))
    whole = tuple(None if p is None else Replicate() for p in now)
    untouched = all(p is None or p.is_replicate() for p in now)
    found.append((0.0, -1 if untouched else 1000, whole, (Replicate(),) * len(outputs), None))
    return found


def _is_sum(placement: Placement | None) -> bool:
    return isinstance(placement, Partial) and placement.reduce_op in ("sum", "avg")


def _plain(placement: Placement) -> bool:
    return type(placement) in (Shard, Replicate) or _is_sum(placement)


def make_plan(rule: Rule, call: Call, mesh: DeviceMesh, placements: tuple[tuple[Placement, ...] | None, ...]) -> Plan:
    """The cheapest way to run the call, given where its tensors lie."""
    names = tensor_arguments(call.op)
    terms = terms_of(rule, call)
    tensors = [call.args[n] for n in names]
    inputs: list[list[Placement] | None] = [None if p is None else [] for p in placements]
    outputs: list[list[Placement]] = [[] for _ in call.outputs]
    sharded: dict[str, list[int]] = {}
    for d in range(mesh.ndim):
        now = [None if p is None else p[d] for p in placements]

        def price(option: tuple, now: list = now, d: int = d) -> tuple[float, int]:
            extra, preference, into, _, _ = option
            moved = sum(
                _cost(a, b, mesh.size(d)) * t.numel() * t.dtype.itemsize
                for a, b, t in zip(now, into, tensors, strict=True)
                if a is not None
            )
            return moved + extra, preference

        _, _, into, out, label = min(_options(call, rule, terms, now, names), key=price)
        for column, p in zip(inputs, into, strict=True):
            if column is not None:
                column.append(p)
        for column, p in zip(outputs, out, strict=True):
            column.append(p)
        if label is not None:
            sharded.setdefault(label, []).append(d)
    across = [(label, tuple(dims)) for label, dims in sharded.items() if label in rule.across]
    if len(across) > 1:
        raise RuntimeError(f"{call.op}: its rule works across one dimension at a time, got {across}")
    return Plan(
        tuple(None if p is None else tuple(p) for p in inputs),
        tuple(map(tuple, outputs)),
        across[0] if across else None,
    )


@functools.lru_cache(8192)
def _cached_plan(op: str, mesh: DeviceMesh, described: tuple) -> tuple[Plan, tuple, bool]:
    args = tuple(torch.empty(a.shape, dtype=a.dtype, device="meta") if isinstance(a, _Spec) else a for a in described)
    call = Call(op, args, mesh.size())
    named = dict(zip(call.args, described, strict=False))
    placements = tuple(getattr(named.get(n), "placements", None) for n in tensor_arguments(op))
    plan = make_plan(RULES[op], call, mesh, placements)
    return plan, tuple((o.shape, o.stride()) for o in call.outputs), call.single


def forget_plans() -> None:
    """They hold meshes."""
    _cached_plan.cache_clear()


class _Spec(NamedTuple):
    """A DTensor in the key of the plan cache."""

    shape: torch.Size
    dtype: torch.dtype
    placements: tuple[Placement, ...]


def _the_mesh(op: str, args: tuple) -> DeviceMesh:
    """The one mesh of all tensors among the arguments."""
    names = [a.name for a in getattr(torch.ops.tle, op).default._schema.arguments]
    first, mesh = "", None
    for name, a in zip(names, args, strict=False):
        if isinstance(a, DTensor):
            if mesh is None:
                first, mesh = name, a.device_mesh
            elif a.device_mesh != mesh:
                raise ValueError(f"{op}: {name} must be on the mesh of {first}, {mesh}, got {a.device_mesh}")
    for name, a in zip(names, args, strict=False):
        if isinstance(a, Tensor) and not isinstance(a, DTensor):
            raise TypeError(
                f"{op}: {name} must be a DTensor as {first} is, got a plain tensor; "
                f"distribute_tensor({name}, mesh, placements) makes it one"
            )
    return mesh


def _hashable(a: Any) -> Any:
    return tuple(a) if isinstance(a, list) else a


def run(op: str, args: tuple) -> Any:
    """torch.ops.tle.<op> on DTensors."""
    if op in NOT_ON_DTENSORS:
        raise NotImplementedError(f"{op}: the arguments must be local tensors, got a DTensor; {NOT_ON_DTENSORS[op]}")
    mesh = _the_mesh(op, args)
    placed = tuple(_plainly_placed(a) if isinstance(a, DTensor) else a for a in args)
    described = tuple(
        _Spec(a.shape, a.dtype, tuple(a.placements)) if isinstance(a, DTensor) else _hashable(a) for a in placed
    )
    try:
        plan, shapes, single = _cached_plan(op, mesh, described)
    except TypeError as e:
        if "unhashable" not in str(e):
            raise
        plan, shapes, single = _cached_plan.__wrapped__(op, mesh, described)  # sizes that are symbols
    outputs = _run_planned(op, placed, mesh, plan)
    wrapped = tuple(
        DTensor.from_local(o, mesh, p, run_check=False, shape=shape, stride=stride)
        for o, p, (shape, stride) in zip(outputs, plan.outputs, shapes, strict=True)
    )
    return wrapped[0] if single else wrapped


def _plainly_placed(t: DTensor) -> DTensor:
    """t with only Shard, Replicate and sums: what else PyTorch has (strided shards, pending maxima) is undone first."""
    if t.requires_grad:  # autograd is done above; torch 2.11 cannot redistribute such a tensor down here
        t = t.detach()
    wanted = [p if _plain(p) else Replicate() for p in t.placements]
    return redistribute(t, wanted)


def redistribute(t: DTensor, placements: Sequence[Placement]) -> DTensor:
    """`t.redistribute`, for what gloo and NCCL do not know too: FP8 codes travel as bytes, int16 as int32."""
    if tuple(t.placements) == tuple(placements):
        return t
    if t.dtype not in FP8_MAX and t.dtype != torch.int16:
        return t.redistribute(placements=list(placements))
    mesh, shape, stride = t.device_mesh, t.shape, t.stride()

    def placed(local: Tensor, where: Sequence[Placement]) -> DTensor:
        return DTensor.from_local(local, mesh, where, run_check=False, shape=shape, stride=stride)

    local = t.to_local()
    carried = local.int() if t.dtype == torch.int16 else local.view(torch.uint8)
    moved = placed(carried, t.placements).redistribute(placements=list(placements)).to_local()
    return placed(moved.to(t.dtype) if t.dtype == torch.int16 else moved.view(t.dtype), placements)


def _run_planned(op: str, args: tuple, mesh: DeviceMesh, plan: Plan) -> tuple[Tensor, ...]:
    named = by_name(op, args)
    local = dict(named)
    for name, placements in zip(tensor_arguments(op), plan.inputs, strict=True):
        t = local[name]
        if t is not None:
            local[name] = redistribute(t, placements).to_local()
    rule = RULES[op]
    if rule.localize is not None:
        local.update(rule.localize(named, local))
    overload = getattr(torch.ops.tle, op).default
    if plan.across is None:
        result = overload(*local.values())
    else:
        label, dims = plan.across
        result = rule.across[label](Across(mesh, dims, overload), **local)
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _dispatch_rule(op: str) -> Callable:
    def rule(cls: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch.no_grad():
            return run(op, args)

    return rule


def register() -> None:
    """Make DTensor know every op that has a rule, and refuse the others by name."""
    for op in (*RULES, *NOT_ON_DTENSORS):
        try:
            torch.library.register_torch_dispatch(f"tle::{op}", DTensor, _dispatch_rule(op), lib=_LIB)
        except RuntimeError as e:
            if "already has" not in str(e):  # the package was imported twice
                raise
