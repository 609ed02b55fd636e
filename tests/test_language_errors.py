"""What the device functions refuse: in the interpreter, on a GPU, and compiled ahead of time for sm_90. (In Gluon
kernels: language_errors.py.)"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
import torch

import tle_ops.language as tle
from tests.conftest import CUDA

DEVICE = "cuda" if CUDA else "cpu"
KERNEL = """
import triton
import triton.language as tl
import tle_ops.language as tle

@triton.jit
def kernel(x_ptr, c_ptr, i_ptr, n, mesh: tl.constexpr, big: tl.constexpr, spec: tl.constexpr, T: tl.constexpr):
    k = tl.arange(0, 64)
    x = tl.load(x_ptr + k)  # [64]
    m = tl.reshape(x, (8, 8))
    {}
"""
MESH = tle.device_mesh({"node": 2, "device": 3})
CONSTANTS = {
    "mesh": MESH,
    "big": tle.device_mesh({"node": 9, "device": 8}),
    "spec": tle.sharding(MESH, ["device", None]),
    "T": torch.float32,
}
BLOCK = "must be a block of one dimension, got"
VALUE = "got a run-time value"
CONTEXT = "context must be an int64 tensor of device_context, got"
ENTRY = "shard_id must be an int, a scalar or a tuple of them, got"
# a line of a kernel, the error, its message
TRACED = (
    # dtypes of torch, of Python and of nothing
    (
        "tle.cumsum(x, dtype=T)",
        TypeError,
        "cumsum: dtype must be a dtype of Triton, such as tl.float32, got torch.float32",
    ),
    (
        "tle.cumsum(x, dtype='float32')",
        TypeError,
        "cumsum: dtype must be a dtype of Triton, such as tl.float32, got 'fl",
    ),
    (
        "tle.cumsum(x, dtype=n)",
        TypeError,
        f"cumsum: dtype must be a dtype of Triton, such as tl.float32, {VALUE} (int32)",
    ),
    ("tle.cumsum(x, dtype=tl.float8e5)", TypeError, "floats from 16 bits on, got fp8e5"),
    (
        "tle.cumsum(x, dtype=tl.int1)",
        TypeError,
        "cumsum: dtype must be of integers from 8 bits or of floats from 16 bits on",
    ),
    ("tle.cumsum(x, dtype=tl.pointer_type(tl.int32))", TypeError, "got pointer<int32>"),
    ("tle.cumsum(None)", TypeError, f"cumsum: input {BLOCK} None"),
    ("tle.cumsum(3)", TypeError, f"cumsum: input {BLOCK} 3"),
    ("tle.cumsum([1, 2])", TypeError, f"cumsum: input {BLOCK} [1, 2]"),
    ("tle.cumsum(x_ptr + k)", TypeError, f"cumsum: input must be numbers, {VALUE} (pointer<fp32> [64])"),
    ("tle.cumsum(m)", ValueError, f"cumsum: input {BLOCK} a run-time value (fp32 [8, 8])"),
    ("tle.cumsum(x, axis=1)", ValueError, "cumsum: axis must be 0 (or -1), got 1"),
    ("tle.cumsum(x, axis='0')", TypeError, "cumsum: axis must be 0 (or -1), got '0'"),
    ("tle.cumsum(x, axis=n)", TypeError, f"cumsum: axis must be 0 (or -1), {VALUE} (int32)"),
    ("tle.cumsum(x, reverse=None)", TypeError, "cumsum: reverse must be a compile-time bool, got None"),
    ("tle.cumsum(x, reverse=n)", TypeError, f"cumsum: reverse must be a compile-time bool, {VALUE} (int32)"),
    ("tle.rank(3)", TypeError, f"rank: keys {BLOCK} 3"),
    ("tle.rank(n)", ValueError, f"rank: keys {BLOCK} a run-time value (int32)"),
    ("tle.rank(x_ptr + k)", TypeError, "rank: keys must be numbers"),
    ("tle.compact(None)", TypeError, f"compact: keep {BLOCK} None"),
    ("tle.compact(m)", ValueError, f"compact: keep {BLOCK} a run-time value (fp32 [8, 8])"),
    ("tle.digit_histogram(k, -1, 4)", ValueError, "digit_histogram: shift must be in [0, 32), got -1"),
    ("tle.digit_histogram(k, 32, 4)", ValueError, "digit_histogram: shift must be in [0, 32), got 32"),
    ("tle.digit_histogram(k.to(tl.int8), 8, 4)", ValueError, "digit_histogram: shift must be in [0, 8), got 8"),
    (
        "tle.digit_histogram(k, 0.5, 4)",
        TypeError,
        "digit_histogram: shift must be an int or an integer scalar, got 0.5",
    ),
    (
        "tle.digit_histogram(k, True, 4)",
        TypeError,
        "digit_histogram: shift must be an int or an integer scalar, got True",
    ),
    ("tle.digit_histogram(k, k, 4)", TypeError, f"shift must be an int or an integer scalar, {VALUE} (int32 [64])"),
    ("tle.digit_histogram(k, 0, 0)", ValueError, "digit_histogram: BITS must be in [1, 21), got 0"),
    ("tle.digit_histogram(k, 0, 31)", ValueError, "digit_histogram: BITS must be in [1, 21), got 31"),
    ("tle.digit_histogram(k, 0, n)", TypeError, f"digit_histogram: BITS must be a compile-time int, {VALUE} (int32)"),
    ("tle.digit_histogram(x, 0, 4)", TypeError, f"digit_histogram: keys must be integers, {VALUE} (fp32 [64])"),
    ("tle.digit_histogram(n, 0, 4)", ValueError, f"digit_histogram: keys {BLOCK} a run-time value (int32)"),
    ("tle.digit_histogram(k, 0, 4, k)", TypeError, f"digit_histogram: mask must be bools, {VALUE} (int32 [64])"),
    ("tle.digit_histogram(k, 0, 4, m > 2)", ValueError, f"mask must have the shape [64], {VALUE} (int1 [8, 8])"),
    ("tle.extract_tile('x', 0, [4])", TypeError, "extract_tile: x must be a block, got 'x'"),
    ("tle.extract_tile(m, '0', [4, 4])", TypeError, "extract_tile: index must be of ints and integer scalars, got '0'"),
    ("tle.extract_tile(m, [True, 0], [4, 4])", TypeError, "index must be of ints and integer scalars, got True"),
    (
        "tle.extract_tile(m, [n > 2, 0], [4, 4])",
        TypeError,
        f"index must be of ints and integer scalars, {VALUE} (int1)",
    ),
    ("tle.extract_tile(m, 0, [n, n])", TypeError, f"extract_tile: shape must be compile-time ints, {VALUE} (int32)"),
    ("tle.extract_tile(m, 0, T)", TypeError, "extract_tile: shape must be compile-time ints, got torch.float32"),
    ("tle.extract_tile(m, 0)", ValueError, "extract_tile: one of shape and tile_shape must be given, got none"),
    ("tle.insert_tile(m, None, 0)", TypeError, "insert_tile: tile must be a block, got None"),
    ("tle.insert_tile(m, m.to(tl.float16), 0)", TypeError, "tile must have the dtype of the block, fp32, got fp16"),
    ("tle.load(None)", TypeError, "load: pointer must be a pointer or a block of pointers, got None"),
    ("tle.load(x)", TypeError, f"load: pointer must be a pointer or a block of pointers, {VALUE} (fp32 [64])"),
    ("tle.load(x_ptr + k, mask=x)", TypeError, f"load: mask must be bools, {VALUE} (fp32 [64])"),
    ("tle.load(x_ptr + k, mask=3)", TypeError, "load: mask must be bools, got 3"),
    ("tle.load(x_ptr + k, is_async='yes')", TypeError, "load: is_async must be a compile-time bool, got 'yes'"),
    ("tle.load(x_ptr + k, is_async=n)", TypeError, f"load: is_async must be a compile-time bool, {VALUE} (int32)"),
    ("tle.load(x_ptr + k, volatile='yes')", TypeError, "load: volatile must be a compile-time bool, got 'yes'"),
    ("tle.shard_id(n, 'node', c_ptr)", TypeError, f"shard_id: mesh must be a device_mesh, {VALUE} (int32)"),
    ("tle.shard_id(mesh, n, c_ptr)", TypeError, f"shard_id: axis must be a name or an int, {VALUE} (int32)"),
    ("tle.shard_id(mesh, 'node', c_ptr + k)", TypeError, f"shard_id: {CONTEXT} a run-time value (pointer<int64> [64])"),
    ("tle.shard_id(mesh, 'node', 'x')", TypeError, f"shard_id: {CONTEXT} 'x'"),
    (
        "tle.remote(None, 0, mesh, c_ptr)",
        TypeError,
        "remote: tensor must be a pointer or a block of pointers, got None",
    ),
    ("tle.remote(x_ptr, None, mesh, c_ptr)", TypeError, f"remote: {ENTRY} None"),
    ("tle.remote(x_ptr, '0', mesh, c_ptr)", TypeError, f"remote: {ENTRY} '0'"),
    ("tle.remote(x_ptr, (0, True), mesh, c_ptr)", TypeError, f"remote: {ENTRY} [0, True]"),
    ("tle.remote(x_ptr, (n, 0.5), mesh, c_ptr)", TypeError, f"remote: {ENTRY} [a run-time value (int32), 0.5]"),
    ("tle.remote(x_ptr, n > 1, mesh, c_ptr)", TypeError, f"remote: {ENTRY} a run-time value (int1)"),
    ("tle.remote(x_ptr, k, mesh, c_ptr)", TypeError, f"remote: {ENTRY} a run-time value (int32 [64])"),
    ("tle.remote(x_ptr, 0, n, c_ptr)", TypeError, f"remote: scope must be a device_mesh, {VALUE} (int32)"),
    ("tle.remote(x_ptr, 0, mesh, c_ptr + k)", TypeError, f"remote: {CONTEXT} a run-time value (pointer<int64> [64])"),
    ("tle.remote(x_ptr, 0, mesh, c_ptr, space=n)", ValueError, f"remote: space must be 'device', {VALUE} (int32)"),
    (
        "tle.distributed_barrier(n, c_ptr)",
        TypeError,
        f"distributed_barrier: mesh must be a device_mesh, {VALUE} (int32)",
    ),
    (
        "tle.distributed_barrier(mesh, i_ptr)",
        TypeError,
        f"distributed_barrier: {CONTEXT} a run-time value (pointer<int32>)",
    ),
    ("tle.distributed_barrier(mesh, c_ptr, polls=0)", ValueError, "polls must be in [1, 2147483648), got 0"),
    (
        "tle.distributed_barrier(mesh, c_ptr, polls=2**40)",
        ValueError,
        "polls must be in [1, 2147483648), got 1099511627776",
    ),
    (
        "tle.distributed_barrier(mesh, c_ptr, polls=0.5)",
        TypeError,
        "polls must be an int or an integer scalar, got 0.5",
    ),
    (
        "tle.distributed_barrier(mesh, c_ptr, polls='3')",
        TypeError,
        "polls must be an int or an integer scalar, got '3'",
    ),
    ("tle.distributed_barrier(mesh, c_ptr, index=-1)", ValueError, "distributed_barrier: index must be >= 0, got -1"),
    (
        "tle.distributed_barrier(mesh, c_ptr, index=True)",
        TypeError,
        "index must be an int or an integer scalar, got True",
    ),
    (
        "tle.distributed_barrier(mesh, c_ptr, index=n > 1)",
        TypeError,
        f"index must be an int or an integer scalar, {VALUE}",
    ),
    (
        "tle.make_sharded_tensor('hello', spec)",
        TypeError,
        "handle must be a tensor, or pointers in a kernel, got 'hello'",
    ),
    (
        "tle.make_sharded_tensor(x, spec)",
        TypeError,
        f"handle must be a tensor, or pointers in a kernel, {VALUE} (fp32 [64])",
    ),
    ("tle.make_sharded_tensor(x_ptr, spec, [n, 4])", TypeError, "shape must be a list of ints, got [a run-time value"),
    ("tle.device_mesh(3)", TypeError, "device_mesh: topology must be a mapping of levels, got 3"),
    ("tle.gpu.load(x_ptr + k)", TypeError, "load: shared memory needs a kernel under @triton.experimental.gluon.jit"),
)
# What only the interpreter can know, and must: there is no memory where these lead.
INTERPRETED = (
    ("tle.remote(x_ptr, 100, context=c_ptr)", ValueError, "remote: shard_id must be in [0, 6), got 100"),
    ("tle.remote(x_ptr, n - 100, context=c_ptr)", ValueError, "remote: shard_id must be in [0, 6), got -98"),
    ("tle.remote(x_ptr, n + 100, mesh, c_ptr)", ValueError, "remote: shard_id must be in [0, 6), got 102"),
    ("tle.remote(x_ptr, (n, 0), mesh, c_ptr)", ValueError, "remote: shard_id must be in [0, 2), got 2"),
    ("tle.remote(x_ptr, (0, -n), mesh, c_ptr)", ValueError, "remote: shard_id must be in [0, 3), got -2"),
    ("tle.remote(x_ptr, 71, big, c_ptr)", ValueError, "remote: shard_id must be in [0, 6), got 71"),
    ("tle.distributed_barrier(mesh, c_ptr, index=100)", ValueError, "program's number) must be in [0, 4), got 100"),
    (
        "tle.distributed_barrier(mesh, c_ptr, index=n - 3)",
        ValueError,
        "distributed_barrier: index must be >= 0, got -1",
    ),
    ("tle.distributed_barrier(mesh, c_ptr, polls=n - 2)", ValueError, "polls must be in [1, 2147483648), got 0"),
    ("tle.distributed_barrier(big, c_ptr)", ValueError, "context must have the 72 processes of the mesh, got 6"),
    ("tle.digit_histogram(k, n + 40, 4)", ValueError, "digit_histogram: shift must be in [0, 32), got 42"),
)


def kernel_of(line: str, folder: str):
    """Triton reads the source of a kernel from its file."""
    path = pathlib.Path(folder) / "case.py"
    path.write_text(KERNEL.format(line), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("case", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def assert_refused(call, error, message) -> None:
    """What Triton raises, or what caused it, says so; at the bottom is an error of that kind."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    found, texts = caught.value, []
    while found is not None:
        texts.append(f"{type(found).__name__}: {found}")
        found = found.__cause__
    assert any(message in text for text in texts), texts
    assert error.__name__ in texts[-1], texts


@pytest.mark.parametrize("line, error, message", TRACED if CUDA else TRACED + INTERPRETED)
def test_refused(line, error, message, tmp_path):
    x, memory = torch.zeros(6, 64, device=DEVICE), torch.zeros(6, 64, dtype=torch.int32, device=DEVICE)
    context = tle.device_context(0, [r.data_ptr() for r in x], [r.data_ptr() for r in memory], 4, DEVICE)
    kernel = kernel_of(line, tmp_path)
    assert_refused(lambda: kernel[(1,)](x[0], context, memory[0], 2, **CONSTANTS), error, message)


def check_compiled() -> None:
    from tests.test_language_build import build

    types = {"x_ptr": "*fp32", "c_ptr": "*i64", "i_ptr": "*i32", "n": "i32"}
    for line, error, message in TRACED:
        with tempfile.TemporaryDirectory() as folder:
            assert_refused(lambda f=folder, at=line: build(kernel_of(at, f), types, CONSTANTS), error, message)


def test_refused_when_compiled():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = """if True:
        import torch
        torch.cuda.is_available = lambda: True
        from tests.test_language_errors import check_compiled
        check_compiled()"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
