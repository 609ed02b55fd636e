"""The columns of the support matrix: one function per thing that PyTorch does to an operator.

A check gets a Call and returns None if the op does it right, or the words of the error that names why it does not. An
assertion that fails is a defect of the op. `EACH` are called once per op; `AT_ONCE` take all ops, since they build a
package or start a process."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.table import F32, OpSpec, assert_same_bits, outputs, to_device
from tests.test_ops import SPECS, assert_rounded_once, batches, described, double, leaves, metadata, with_grad
from tle_ops.kernels import CPU, INLINED

ROOT = Path(__file__).parents[1]
# Operators that need a process group have tests of their own.
PUBLIC = {s.name: s for s in SPECS if not s.name.endswith("_bwd") and not CPU[s.name].startswith("distributed")}
CONSTANT = "constant: codes, indices and counts have no derivative"


class Call:
    """The first sample of one op, on a device, and what it gives."""

    def __init__(self, spec: OpSpec, device: str) -> None:
        if spec.jvp and not spec.diff:  # a gradient by definition, not the derivative that other tests compare with
            spec = dataclasses.replace(spec, diff=(0,))
        self.spec, self.device, self.op = spec, device, spec.op
        self.cpu_args = next(iter(spec.samples(F32))).args
        self.args = self.cpu_args if device == "cpu" else to_device(self.cpu_args, device)
        self.at = [i for i, a in enumerate(self.args) if isinstance(a, Tensor)]
        self.tensors = [self.args[i] for i in self.at]
        self.want = [t.detach() for t in outputs(self.op(*self.args))]

    def of_tensors(self, *tensors: Tensor) -> Any:
        """The op of its tensors alone; the rest of the arguments is as in the sample."""
        args = list(self.args)
        for i, t in zip(self.at, tensors, strict=True):
            args[i] = t
        return self.op(*args)

    def same(self, got: Any, what: str = "") -> None:
        for g, w in zip(outputs(got), self.want, strict=True):
            assert_same_bits(g, w, what or self.spec.name)

    def nearly_same(self, got: Any) -> None:
        """After Inductor, which has an exp and an erf of its own for the ops that it takes apart."""
        if self.spec.name in INLINED and not self.spec.exact:
            torch.testing.assert_close(outputs(got), tuple(self.want), rtol=1e-5, atol=1e-5)
        else:
            self.same(got)

    def leaves(self) -> tuple[tuple, list[Tensor]]:
        """Arguments that ask for gradients, and the leaves among them with one that is there for every op."""
        args = with_grad(self.spec, type("S", (), {"args": self.args}))
        return args, [*leaves(self.spec, args), torch.ones((), device=self.device, requires_grad=True)]

    def region(self, args: tuple, weight: Tensor) -> Tensor:
        """A piece of a training step with the op in it. Codes and indices are constants in it."""
        return (described(self.spec, self.op(*args)).float().clamp(-1e4, 1e4) * weight).sin().sum()

    def gradients(self, around: Callable = lambda region: region) -> list[Tensor]:
        args, inputs = self.leaves()
        return list(torch.autograd.grad(around(self.region)(args, inputs[-1]), inputs))

    def same_gradients(self, got: list[Tensor]) -> None:
        for g, w in zip(got, self.gradients(), strict=True):  # sums of a compiled region may run in another order
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            assert (g - w).norm() <= 1e-4 * w.norm() + 1e-6, f"{self.spec.name}: a gradient is off"


def eager(c: Call) -> str | None:
    if c.device != "cpu":
        from tests.test_kernels import assert_as_good

        assert_as_good(c.spec, tuple(c.want), outputs(c.op(*c.cpu_args)), c.cpu_args)
    elif c.spec.plain:
        truth = c.spec.plain(*double(c.args)).detach()
        got = described(c.spec, tuple(c.want))
        assert_rounded_once(got, truth.expand(got.shape), c.spec.value_scale(c.args))
    c.same(c.op(*c.args), "second run")
    return None


def inference_mode(c: Call) -> str | None:
    with torch.inference_mode():
        got = outputs(c.op(*c.args))
    assert all(t.is_inference() for t in got)
    c.same(got)
    return None


def _compile(c: Call, **options: Any) -> str | None:
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(c.of_tensors, fullgraph=True, **options)
        for _ in range(3):
            c.nearly_same(compiled(*c.tensors))
    return None


def compile_static(c: Call) -> str | None:
    return _compile(c, dynamic=False)


def compile_dynamic(c: Call) -> str | None:
    return _compile(c, dynamic=True)


def compile_training(c: Call) -> str | None:
    torch._dynamo.reset()
    c.same_gradients(c.gradients(lambda region: torch.compile(region, fullgraph=True)))
    return None


def reduce_overhead(c: Call) -> str | None:
    if c.device == "cpu":
        return "CUDA only"
    return _compile(c, mode="reduce-overhead")


def cuda_graph(c: Call) -> str | None:
    if c.device == "cpu":
        return "CUDA only"
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = outputs(c.op(*c.args))
    for t in got:
        t.view(torch.uint8).fill_(77) if t.numel() else None
    graph.replay()
    c.same(got)
    return None


class Module(nn.Module):
    """A module that uses one op."""

    def __init__(self, c: Call) -> None:
        super().__init__()
        self.name, self.args = c.spec.name, tuple(None if i in c.at else a for i, a in enumerate(c.args))

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        at = {i for i, a in enumerate(self.args) if a is None}
        full = [next(rest, None) if i in at else a for i, a in enumerate(self.args)]
        return getattr(torch.ops.tle, self.name).default(*full)


class _Traced(nn.Module):
    def __init__(self, c: Call) -> None:
        super().__init__()
        self.forward = c.of_tensors


def export(c: Call) -> str | None:
    program = torch.export.export(_Traced(c), tuple(c.tensors))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    c.same(torch.export.load(buffer).module()(*c.tensors))
    return None


def vmap(c: Call) -> str | None:
    dims = next((d for d in c.spec.vmap if len(d) == len(c.at)), (0,) * len(c.at))
    stacked = [t if d is None else torch.stack(batches(t), d) for t, d in zip(c.tensors, dims, strict=True)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = outputs(torch.vmap(c.of_tensors, dims)(*stacked))
    for g, w in zip(got, c.want, strict=True):
        if c.spec.exact or not w.dtype.is_floating_point or w.dtype.itemsize == 1:
            assert_same_bits(g[0], w)
        else:  # a loop's vector part and its tail may round exp differently
            torch.testing.assert_close(g[0], w, rtol=1e-5, atol=1e-5)
    slow = [w for w in caught if "performance drop" in str(w.message)]
    return "right, one sample after the other (there is no rule)" if slow else None


def _jvp(c: Call, around: Callable) -> str | None:
    if not c.spec.diff:
        return CONSTANT
    at = c.spec.diff[0]

    def loss(t: Tensor) -> Tensor:
        return c.region((*c.args[:at], t, *c.args[at + 1 :]), torch.ones((), device=c.device))

    x = c.args[at].detach()
    tangent = torch.linspace(-1, 1, x.numel(), device=c.device).view(x.shape).to(x.dtype)
    if not c.spec.jvp:
        try:
            torch.func.jvp(loss, (x,), (tangent,))
        except NotImplementedError as e:
            return f"NotImplementedError: {e}"
        raise AssertionError("no tangent, and no error")
    leaf = x.clone().requires_grad_()
    want = (torch.autograd.grad(loss(leaf), leaf)[0] * tangent).sum()
    torch._dynamo.reset()
    got = around(lambda x, t: torch.func.jvp(loss, (x,), (t,))[1])(x, tangent)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    return None


def jvp(c: Call) -> str | None:
    return _jvp(c, lambda f: f)


def jvp_compiled(c: Call) -> str | None:
    return _jvp(c, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"))


def autocast(c: Call) -> str | None:
    with torch.autocast(c.device.split(":")[0], dtype=torch.bfloat16):
        c.same(c.op(*c.args))
    return None


def checkpointing(c: Call) -> str | None:
    def around(region: Callable) -> Callable:
        return lambda *a: torch.utils.checkpoint.checkpoint(region, *a, use_reentrant=False)

    c.same_gradients(c.gradients(around))
    return None


def saved_tensor_hooks(c: Call) -> str | None:
    packed = []

    def around(region: Callable) -> Callable:
        def call(*a: Any) -> Tensor:
            def pack(t: Tensor) -> Tensor:
                packed.append(t)
                return t.cpu()

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(c.device)):
                return region(*a)

        return call

    c.same_gradients(c.gradients(around))
    assert packed
    return None


def subclass(c: Call) -> str | None:
    from torch.testing._internal.two_tensor import TwoTensor

    got = outputs(c.of_tensors(*(TwoTensor(t, t.clone()) for t in c.tensors)))
    assert all(isinstance(t, TwoTensor) for t in got)
    c.same(tuple(t.a for t in got))
    c.same(tuple(t.b for t in got))
    return None


def dtensor(c: Call) -> str | None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    import tle_ops.distributed  # noqa: F401  (registers the rules)

    mine = not dist.is_initialized()  # the specs of distributed operators make one too
    if mine:
        dist.init_process_group(
            "gloo" if c.device == "cpu" else "cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1
        )
    try:
        mesh = DeviceMesh(c.device.split(":")[0], [0])
        got = outputs(
            c.of_tensors(
                *(
                    distribute_tensor(t, mesh, [Shard(0) if t.dim() else Replicate()], src_data_rank=None)
                    for t in c.tensors
                )
            )
        )
        assert all(isinstance(t, DTensor) for t in got)
        c.same(tuple(t.full_tensor() for t in got))
    finally:
        if mine:
            dist.destroy_process_group()
    return None


def fake_and_meta(c: Call) -> str | None:
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = outputs(c.of_tensors(*map(mode.from_tensor, c.tensors)))
    assert [metadata(t) for t in fake] == [metadata(t) for t in c.want]
    meta = outputs(c.of_tensors(*(t.to("meta") for t in c.tensors)))
    assert [(t.shape, t.dtype) for t in meta] == [(t.shape, t.dtype) for t in c.want]
    return None


def deepcopy_and_pickle(c: Call) -> str | None:
    module = Module(c)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        c.same(other(*c.tensors))
    return None


def eight_threads(c: Call) -> str | None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            if c.device == "cpu":
                for _ in range(3):
                    c.same(c.op(*c.args))
                return
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(3):
                    got = c.op(*c.args)
                    torch.cuda.current_stream().synchronize()
                    c.same(got)
        except BaseException as e:
            failures.append(e)

    if c.device != "cpu":
        torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return None


def deterministic(c: Call) -> str | None:
    """In this mode torch.empty is filled with NaN, which finds outputs that nobody wrote."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        c.same(c.op(*c.args))
    finally:
        torch.use_deterministic_algorithms(before)
    return None


def other_device(c: Call) -> str | None:
    if c.device == "cpu":
        return "CUDA only"
    if torch.cuda.device_count() < 2:
        return "not run: needs two GPUs"
    current = torch.cuda.current_device()
    got = c.op(*to_device(c.cpu_args, f"cuda:{1 - current}"))
    assert torch.cuda.current_device() == current
    assert all(t.device.index == 1 - current for t in outputs(got))
    c.same(got)
    return None


EACH: dict[str, Callable[[Call], str | None]] = {
    "eager": eager,
    "inference_mode": inference_mode,
    "compile, static": compile_static,
    "compile, dynamic": compile_dynamic,
    "compile, training": compile_training,
    "reduce-overhead": reduce_overhead,
    "CUDA graph": cuda_graph,
    "export": export,
    "vmap": vmap,
    "jvp": jvp,
    "jvp, compiled": jvp_compiled,
    "autocast": autocast,
    "checkpoint": checkpointing,
    "saved-tensor hooks": saved_tensor_hooks,
    "subclass": subclass,
    "DTensor": dtensor,
    "fake, meta": fake_and_meta,
    "deepcopy, pickle": deepcopy_and_pickle,
    "8 threads": eight_threads,
    "deterministic": deterministic,
    "other device": other_device,
}
INDUCTOR = ("compile, static", "compile, dynamic", "compile, training", "reduce-overhead")  # seconds each


# --- all ops at once -------------------------------------------------------------------------------------------------
class _All(nn.Module):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *tensors: Tensor) -> tuple:
        rest = iter(tensors)
        return tuple(outputs(c.of_tensors(*(next(rest) for _ in c.at))) for c in self.calls)


def _in_fresh_process(*arguments: str) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def cannot_be_packaged(c: Call) -> str | None:
    """Why an op is left out of the package."""
    dtypes = any("ScalarType" in str(a.real_type) for a in c.op._schema.arguments)
    if dtypes and torch.__version__ < "2.12":
        return "not run: torch 2.11 hands a packaged operator another dtype than the one that was asked for"
    return None


def aot_inductor(calls: list[Call], folder: Path) -> None:
    """One package of all ops, loaded where nothing of this process is."""
    tensors = tuple(t for c in calls for t in c.tensors)
    with torch.no_grad():
        program = torch.export.export(_All(calls), tensors)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "ops.pt2"))
    torch.save(tensors, folder / "inputs.pt")
    code = """if True:
        import sys, torch, tle_ops
        model, inputs, results = sys.argv[1:]
        torch.save(torch._inductor.aoti_load_package(model)(*torch.load(inputs)), results)"""
    _in_fresh_process("-c", code, str(package), str(folder / "inputs.pt"), str(folder / "results.pt"))
    got = torch.load(folder / "results.pt")
    flat = list(torch.utils._pytree.tree_leaves(got))
    for c in calls:
        c.nearly_same(tuple(flat.pop(0) for _ in c.want))


_CHILD = """
    import sys, torch, tle_ops
    import torch.multiprocessing as mp

    def work(inputs, results, device):
        torch.set_num_threads(1)
        calls = torch.load(inputs)
        moved = [(n, [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]) for n, args in calls]
        torch.save([getattr(torch.ops.tle, n)(*args) for n, args in moved], results)

    if __name__ == "__main__":
        how, inputs, results, device = sys.argv[1:]
        for n, args in torch.load(inputs):
            getattr(torch.ops.tle, n)(*args)  # the parent has used the ops
        child = mp.get_context(how).Process(target=work, args=(inputs, results, device))
        child.start()
        child.join()
        sys.exit(child.exitcode)"""


def start_methods(calls: list[Call], folder: Path) -> None:
    """A process that has used the ops forks, and spawns, and the child uses them."""
    script = folder / "child.py"  # spawn imports the main module again, so it must be a file
    script.write_text(textwrap.dedent(_CHILD))
    torch.save([(c.spec.name, c.cpu_args) for c in calls], folder / "calls.pt")
    for how in ("fork", "spawn"):
        _in_fresh_process(str(script), how, str(folder / "calls.pt"), str(folder / how), calls[0].device)
        for c, got in zip(calls, torch.load(folder / how), strict=True):
            c.same(tuple(t.cpu() for t in outputs(got)), f"{c.spec.name} after {how}")


LEFT_OUT: dict[str, Callable[[Call], str | None]] = {"AOTInductor": cannot_be_packaged}
AT_ONCE: dict[str, Callable[[list[Call], Path], None]] = {
    "AOTInductor": aot_inductor,
    "fork, spawn": start_methods,
}
COLUMNS = (*EACH, *AT_ONCE)
