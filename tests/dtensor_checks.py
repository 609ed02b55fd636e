"""Checks of operators on DTensors, run by every process of a gloo world: the result must be that of the whole tensors,
whatever the placements."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import tests.specs
import tle_ops
from tests.table import BF16, F32, OpSpec, Sample, bits, outputs, randn
from tle_ops.distributed._dtensor import redistribute
from tle_ops.distributed._rule import Call, may_shard, tensor_arguments, terms_of
from tle_ops.distributed.rules import RULES

SAMPLES = 2  # of each op
SPECS: list[OpSpec] = [
    spec
    for module in pkgutil.iter_modules(tests.specs.__path__)
    for spec in importlib.import_module(f"tests.specs.{module.name}").SPECS
    if spec.name in RULES
]


def meshes(world: int) -> list[Any]:
    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
    return [flat] if world < 4 else [flat, init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("outer", "inner"))]


def place(t: Tensor, mesh: Any, placements: tuple[Placement, ...]) -> DTensor:
    """t on the mesh. A pending sum has summands that differ, so that an op which is not linear cannot get away."""
    whole = [Replicate() if p.is_partial() else p for p in placements]
    local = redistribute(DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False), whole).to_local()
    for d, p in enumerate(placements):
        if p.is_partial() and mesh.size(d) > 1:  # 2 t - t: exact
            local = local * [2, -1, *[0] * mesh.size(d)][mesh.get_local_rank(d)]
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=t.shape, stride=t.contiguous().stride())


def choices(t: Tensor, mesh: Any) -> list[tuple[Placement, ...]]:
    one: list[Placement] = [Replicate(), *(Shard(d) for d in range(t.dim()))]
    if t.dtype in (torch.float32, torch.float64) and bool((t.abs() < 1e30).all()):
        one.append(Partial())
    return list(itertools.product(one, repeat=mesh.ndim))


def whole(t: Tensor) -> Tensor:
    if not isinstance(t, DTensor):
        return t
    return redistribute(t, [Replicate()] * t.device_mesh.ndim).to_local()


def assert_same(got: Tensor, want: Tensor, what: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if want.dtype.is_floating_point and want.dtype.itemsize > 1:
        loose = 2e-2 if want.dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True, msg=lambda m: f"{what}: {m}")
    else:
        assert torch.equal(bits(got), bits(want)), what


def in_order(spec: OpSpec, args: tuple, result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """topk with sorted=False may order its result as it likes."""
    if spec.name == "topk" and len(args) > 4 and not args[4]:
        dim = args[2]
        indices, order = result[1].sort(dim)
        return result[0].gather(dim, order), indices
    return result


def some(spec: OpSpec, rng: random.Random) -> list[Sample]:
    samples = list(spec.samples(spec.dtypes[0]))
    return rng.sample(samples, min(SAMPLES, len(samples)))


def check_values_whatever_the_placement(rank: int, world: int) -> None:
    rng = random.Random(world)
    for spec, mesh in itertools.product(SPECS, meshes(world)):
        for sample in some(spec, rng):
            where = [rng.choice(choices(a, mesh)) if isinstance(a, Tensor) else None for a in sample.args]
            args = [a if p is None else place(a, mesh, p) for a, p in zip(sample.args, where, strict=True)]
            want = in_order(spec, sample.args, outputs(spec.op(*sample.args)))
            got = in_order(spec, sample.args, tuple(whole(t) for t in outputs(spec.op(*args))))
            for g, w in zip(got, want, strict=True):
                assert_same(g, w, f"{spec} {sample.id} {where}")


def check_rows_need_no_communication(rank: int, world: int) -> None:
    """Sharded by any label of its rule, an op stays local and keeps the placement; a row count that does not divide
    is fine."""
    mesh = meshes(world)[0]
    seen = set()
    for spec in SPECS:
        for sample in spec.samples(spec.dtypes[0]):
            if any(isinstance(a, Tensor) and a.numel() == 0 for a in sample.args):
                continue
            call = Call(spec.name, sample.args, world)
            inputs, results = terms_of(RULES[spec.name], call)
            labels = {label for term in inputs if term for label in term if may_shard(label)}
            for label in sorted(labels - RULES[spec.name].across.keys()):
                placed = dict(call.args)
                for name, term in zip(tensor_arguments(spec.name), inputs, strict=True):
                    if placed[name] is not None:
                        p = Shard(term.index(label)) if term and label in term else Replicate()
                        placed[name] = place(placed[name], mesh, (p,))
                with CommDebugMode() as counter:
                    got = outputs(spec.op(*placed.values()))
                assert counter.get_total_counts() == 0, f"{spec} {sample.id} {label}"
                for t, term in zip(got, results, strict=True):
                    want = Replicate() if term is None else Shard(term.index(label)) if label in term else Partial()
                    assert t.placements == (want,), f"{spec} {sample.id} {label}"
                seen.add(spec.name)
                break
            if spec.name in seen:
                break
    assert {s.name for s in SPECS} - seen == {"moe_align"}  # numbers its slots over all tokens


def check_across_a_sharded_dimension(rank: int, world: int) -> None:
    """Statistics, totals and candidates travel; the tensor does not."""
    mesh = meshes(world)[0]
    x, w = randn(6, 32 * world), randn(32 * world)
    sharded, weight = place(x, mesh, (Shard(1),)), place(w, mesh, (Shard(0),))
    for op, args, plain, reduces, gathers in (
        (tle_ops.rms_norm, (sharded, weight, 1e-6), (x, w, 1e-6), 1, 0),
        (tle_ops.layer_norm, (sharded, weight, weight, 1e-6), (x, w, w, 1e-6), 2, 0),
        (tle_ops.topk, (sharded, 5), (x, 5), 0, 2),
        (tle_ops.topk_selector, (sharded, 5), (x, 5), 0, 3),
        (tle_ops.cumsum, (sharded, 1), (x, 1), 0, 1),
    ):
        with CommDebugMode() as counter:
            got = outputs(op(*args))
        counts = {str(k).rsplit(".", 1)[-1]: n for k, n in counter.get_comm_counts().items()}
        assert counts.get("all_reduce", 0) == reduces, f"{op.__name__} {counts}"
        assert counter.get_total_counts() == reduces + gathers, f"{op.__name__} {counts}"
        for g, w_ in zip(got, outputs(op(*plain)), strict=True):
            assert_same(whole(g), w_, op.__name__)
    for dtype in (torch.int64, torch.int16, torch.uint8, torch.bool):
        whole_, axis = torch.randint(0, 2, (2, 8 * world)).to(dtype), (Shard(1),)
        for op in (tle_ops.cumsum, lambda t: tle_ops.topk(t, 3)):
            if op is tle_ops.cumsum or dtype != torch.bool:
                for g, w_ in zip(outputs(op(place(whole_, mesh, axis))), outputs(op(whole_)), strict=True):
                    assert_same(whole(g), w_, str(dtype))
    ties = torch.randint(0, 3, (4, 64 * world), generator=torch.Generator().manual_seed(0)).float()
    ties[0, ::3], ties[1] = torch.nan, -torch.inf
    for largest in (True, False):
        for k in (0, 1, 7, 64, 64 * world):
            got = tle_ops.topk(place(ties, mesh, (Shard(1),)), k, largest=largest)
            for g, w_ in zip(got, tle_ops.topk(ties, k, largest=largest), strict=True):
                assert_same(whole(g), w_, f"ties {k} {largest}")
    least, most = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
    starts = torch.tensor([least, 5, 100, -3], dtype=torch.int32)
    ends = torch.tensor([most, 70, least, 9], dtype=torch.int32)
    bounds = [place(b, mesh, (Replicate(),)) for b in (starts, ends)]
    got = tle_ops.topk_selector(place(ties, mesh, (Shard(1),)), 80, *bounds)
    assert_same(whole(got), tle_ops.topk_selector(ties, 80, starts, ends), "windows")


def leaf(spec: OpSpec, i: int, a: Any) -> Any:
    if not isinstance(a, Tensor) or not a.is_floating_point():
        return a
    return a.detach().clone().requires_grad_(i in spec.diff)


def check_gradients(rank: int, world: int) -> None:
    rng = random.Random(world)
    for spec, mesh in itertools.product(
        [s for s in SPECS if s.diff and s.plain and not s.name.endswith("_cast_back")], meshes(world)[-1:]
    ):
        tried = 0
        for sample in rng.sample(samples := list(spec.samples(F32)), len(samples)):
            tensors = [a for a in sample.args if isinstance(a, Tensor)]
            plain = [leaf(spec, i, a) for i, a in enumerate(sample.args)]
            out = outputs(spec.op(*plain))[spec.output]
            if any(t.numel() == 0 for t in tensors) or not out.requires_grad:
                continue
            cotangent = randn(*out.shape, dtype=out.dtype)
            leaves = [i for i, a in enumerate(plain) if isinstance(a, Tensor) and a.requires_grad]
            want = torch.autograd.grad(out, [plain[i] for i in leaves], cotangent)
            where = [rng.choice(choices(a, mesh)) if isinstance(a, Tensor) else None for a in sample.args]
            args = [a if p is None else place(a.detach(), mesh, p) for a, p in zip(plain, where, strict=True)]
            for i in leaves:
                args[i].requires_grad_()
            out = outputs(spec.op(*args))[spec.output]
            dy = place(cotangent, mesh, rng.choice(choices(cotangent, mesh)))
            got = torch.autograd.grad(out, [args[i] for i in leaves], dy)
            for g, w in zip(got, want, strict=True):
                assert_same(whole(g), w, f"{spec} {sample.id} {where}")
            tried += 1
            if tried == 2:
                break
        assert tried, spec.name


def check_training_step(rank: int, world: int) -> None:
    """Sequence-parallel activations, a weight that everybody has: its gradient is a pending sum."""
    mesh = meshes(world)[0]
    x, w = randn(2, 4 * world, 64), randn(64)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        y = tle_ops.rms_norm(x, w, 1e-6)
        return tle_ops.swiglu(y, tle_ops.add(y, y)).sum()

    a, b = place(x, mesh, (Shard(1),)).requires_grad_(), place(w, mesh, (Replicate(),)).requires_grad_()
    loss(a, b).backward()
    x, w = x.requires_grad_(), w.requires_grad_()
    loss(x, w).backward()
    assert a.grad.placements == (Shard(1),)
    assert b.grad.placements == (Partial(),)
    for got, want in ((a.grad, x.grad), (b.grad, w.grad)):
        assert_same(whole(got), want, "step")


def check_compiled(rank: int, world: int) -> None:
    mesh = meshes(world)[0]
    x, w = place(randn(4 * world, 64), mesh, (Shard(0),)), place(randn(64), mesh, (Replicate(),))
    torch._dynamo.reset()

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return tle_ops.per_token_cast_fp8(tle_ops.rms_norm(x, w, 1e-6), 32)

    for g, want in zip(torch.compile(step, fullgraph=True, backend="aot_eager")(x, w), step(x, w), strict=True):
        assert g.placements == want.placements
        assert_same(g.to_local(), want.to_local(), "compiled")


def check_errors(rank: int, world: int) -> None:
    mesh = meshes(world)[0]
    x, w = place(randn(4, 32), mesh, (Shard(0),)), place(randn(32), mesh, (Replicate(),))
    with pytest.raises(TypeError, match="rms_norm: weight must be a DTensor as x is, got a plain tensor"):
        tle_ops.rms_norm(x, randn(32), 1e-6)
    other = init_device_mesh("cpu", (1, world), mesh_dim_names=("one", "all"))
    with pytest.raises(ValueError, match="rms_norm: weight must be on the mesh of x"):
        tle_ops.rms_norm(x, place(randn(32), other, (Replicate(), Replicate())), 1e-6)
    with pytest.raises(ValueError, match=r"rms_norm: weight must have shape \[32\], got \[31\]"):
        tle_ops.rms_norm(x, place(randn(31), mesh, (Replicate(),)), 1e-6)
    for call in (lambda: tle_ops.remote(x, 0), lambda: tle_ops.all_gather_fp8(w)):
        with pytest.raises(NotImplementedError, match=r"must be local tensors, got a DTensor; .* x.to_local\(\)"):
            call()
    assert dist.is_initialized()


def check_codes_and_scales_lie_together(rank: int, world: int) -> None:
    mesh = meshes(world)[0]
    x = randn(8, 128 * world, dtype=BF16)
    for p, group, want in (
        (Shard(0), 128, Shard(0)),
        (Shard(1), 128, Shard(1)),  # whole groups on every process
        (Shard(1), -1, Shard(0)),  # to whole rows: fewer bytes than a gather
        (Shard(1), 96, Shard(0)),  # groups would be cut
    ):
        q, scales = tle_ops.per_token_cast_fp8(place(x, mesh, (p,)), group)
        assert q.placements == scales.placements == (want,), (p, group)
        back = tle_ops.per_token_cast_back(q, scales, group)
        assert back.placements == (want,)
        assert_same(whole(back), tle_ops.per_token_cast_back(*tle_ops.per_token_cast_fp8(x, group), group), "back")


CHECKS = [f for name, f in list(globals().items()) if name.startswith("check_")]
