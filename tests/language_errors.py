"""What tle.pipe and tle.gpu refuse while a kernel is traced: a line of a kernel, the error, its message."""

from __future__ import annotations

import importlib.util
import pathlib
import tempfile

KERNEL = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
import tle_ops.language as tle

@gluon.jit
def kernel(x_ptr, n):
    b = tle.gpu.alloc([2, 64], gl.float32)
    flat = tle.gpu.alloc([64], gl.float32)
    i = gl.arange(0, 64, gl.BlockedLayout([1], [32], [4], [0]))
    {}
"""
PIPE = (
    # body, error, message
    ("tle.pipe(capacity=0, x=b)", "ValueError", "pipe: capacity must be a compile-time int > 0, got 0"),
    ("tle.pipe(capacity=-1, x=b)", "ValueError", "pipe: capacity must be a compile-time int > 0, got -1"),
    ("tle.pipe(capacity=True, x=b)", "ValueError", "pipe: capacity must be a compile-time int > 0, got True"),
    ("tle.pipe(capacity=2.0, x=b)", "ValueError", "pipe: capacity must be a compile-time int > 0, got 2.0"),
    (
        "tle.pipe(capacity=n, x=b)",
        "ValueError",
        "capacity must be a compile-time int > 0, got a run-time value (int32)",
    ),
    ("tle.pipe(capacity=2, scope='grid', x=b)", "ValueError", "pipe: scope must be 'cta', got 'grid'"),
    ("tle.pipe(capacity=2, name=3, x=b)", "ValueError", "pipe: name must be a string or None, got 3"),
    ("tle.pipe(capacity=2, one_shot=1, x=b)", "ValueError", "pipe: one_shot must be a compile-time bool, got 1"),
    ("tle.pipe(capacity=2)", "ValueError", "pipe: at least one field must be given, got none"),
    ("tle.pipe(capacity=2, name='q', x=1)", "ValueError", "pipe q: field x must be a shared-memory buffer, got 1"),
    ("tle.pipe(capacity=2, x=i)", "ValueError", "pipe: field x must be a shared-memory buffer, got a run-time value"),
    ("tle.pipe(capacity=3, x=b)", "ValueError", "a first dimension of capacity = 3, got [2, 64]"),
    ("tle.pipe(capacity=64, x=flat)", "ValueError", "field x must have rank >= 2 and a first dimension"),
    ("tle.pipe(capacity=2, _x=b)", "ValueError", "the name of a field must not start with '_' nor be one of"),
    ("tle.pipe(capacity=2, fields=b)", "ValueError", "nor be one of fields, readers, type, got 'fields'"),
    ("tle.pipe(capacity=2, type=b)", "ValueError", "nor be one of fields, readers, type, got 'type'"),
    (
        "tle.pipe(capacity=2, x=tle.gpu.alloc([2, 64], gl.float32, layout=gl.SwizzledSharedLayout(1, 1, 1, [1, 0])))",
        "ValueError",
        "field x must have a layout of rank 1 (that of one stage), got 2",
    ),
    (
        "tle.pipe(capacity=2, readers='a', x=b)",
        "ValueError",
        "readers must be a non-empty tuple or list of names, got 'a'",
    ),
    (
        "tle.pipe(capacity=2, readers=(), x=b)",
        "ValueError",
        "readers must be a non-empty tuple or list of names, got ()",
    ),
    ("tle.pipe(capacity=2, readers=('a', 'a'), x=b)", "ValueError", "readers must not name one twice, got ('a', 'a')"),
    ("tle.pipe(capacity=2, readers=('a b',), x=b)", "ValueError", "a reader must be a Python identifier, got 'a b'"),
    (
        "tle.pipe(capacity=2, readers=(1,), x=b)",
        "ValueError",
        "the name of a reader must be a Python identifier, got 1",
    ),
    ("tle.pipe(capacity=2, readers=('readers',), x=b)", "ValueError", "the name of a reader must not start with '_'"),
    ("tle.pipe(capacity=2, readers=('a',), x=b).reader()", "ValueError", "reader(name) must be one of a, got None"),
    ("tle.pipe(capacity=2, readers=('a',), x=b).reader('b')", "ValueError", "reader(name) must be one of a, got 'b'"),
    ("tle.pipe(capacity=2, x=b).reader('a')", "ValueError", "a reader's name must be declared by readers=, got 'a'"),
    ("tle.pipe(capacity=2, x=b).reader(fields=('y',))", "ValueError", "reader(fields=) must be among x, got 'y'"),
    ("tle.pipe(capacity=2, x=b).reader(fields='x')", "ValueError", "reader(fields=) must be a non-empty tuple or list"),
    ("tle.pipe(capacity=2, x=b).reader(fields=())", "ValueError", "reader(fields=) must be a non-empty tuple or list"),
    ("tle.pipe(capacity=2, x=b).reader(fields=('x', 'x'))", "ValueError", "reader(fields=) must not name one twice"),
    ("tle.pipe(capacity=2, one_shot=True, x=b).writer().close(0)", "ValueError", "a one_shot pipe must not be closed"),
    (
        "tle.pipe(capacity=2, one_shot=True, x=b).writer().acquire(2)",
        "ValueError",
        "an iteration of a one_shot pipe must be < capacity = 2, got 2",
    ),
    ("tle.pipe(capacity=2, x=b).writer().acquire(-1)", "ValueError", "an iteration must be >= 0, got -1"),
    (
        "tle.pipe(capacity=2, x=b).reader().wait(0.5)",
        "TypeError",
        "an iteration must be an int, an integer scalar or a cursor, got 0.5",
    ),
    ("tle.pipe(capacity=2, x=b).writer().acquire(i)", "TypeError", "an iteration must be an int, an integer scalar"),
    (
        "tle.pipe(capacity=2, x=b).writer().acquire(tle.pipe(capacity=1, x=b.slice(0, 1)).writer().cursor())",
        "ValueError",
        "a cursor must be of a pipe of capacity 2, got 1",
    ),
    ("tle.pipe(capacity=2, x=b).writer().commit(0, tma=('y',))", "ValueError", "commit(tma=) must be among x, got 'y'"),
    (
        "tle.pipe(capacity=2, x=b).writer().commit(0, tma='x')",
        "ValueError",
        "commit(tma=) must be a non-empty tuple or",
    ),
    (
        "tle.pipe(capacity=2, x=b).writer().commit(0, tma=('x',), cp_async=('x',))",
        "ValueError",
        "a field must have one transport, got two for x",
    ),
    ("tle.pipe(capacity=2, x=b).writer().acquire(0).y", "CompilationError", "pipe_slot has no member y, it has x"),
)
GPU = (
    ("tle.gpu.alloc([0], gl.float32)", "ValueError", "alloc: shape must be compile-time ints > 0, got [0]"),
    ("tle.gpu.alloc([n], gl.float32)", "ValueError", "alloc: shape must be compile-time ints > 0, got ['<int32>']"),
    ("tle.gpu.alloc([], gl.float32)", "ValueError", "alloc: shape must be compile-time ints > 0, got []"),
    ("tle.gpu.alloc([48], gl.float32)", "ValueError", "alloc: shape must be powers of two (but for stages), got [48]"),
    ("tle.gpu.alloc([2, 48], gl.float32)", "ValueError", "shape must be powers of two (but for stages), got [2, 48]"),
    (
        "tle.gpu.alloc([64], 4)",
        "TypeError",
        "alloc: dtype must be a Triton type of 8 bits or more, such as tl.float32, got 4",
    ),
    ("tle.gpu.alloc([64], gl.int1)", "TypeError", "alloc: dtype must be a Triton type of 8 bits or more"),
    ("tle.gpu.alloc([64], gl.float32, scope='tmem')", "ValueError", "alloc: scope must be tle.gpu.smem, got 'tmem'"),
    ("tle.gpu.alloc([64], gl.float32, layout=3)", "TypeError", "alloc: layout must be a shared layout of Gluon, got 3"),
    (
        "tle.gpu.alloc([2, 2, 64], gl.float32, layout=gl.SwizzledSharedLayout(1, 1, 1, [0]))",
        "ValueError",
        "alloc: layout must have rank 3, or 2 for stages, got 1",
    ),
    (
        "tle.gpu.alloc([64], gl.float32, nv_mma_shared_layout=2)",
        "ValueError",
        "alloc: nv_mma_shared_layout must be a bool, got 2",
    ),
    ("tle.gpu.local_ptr(x_ptr)", "TypeError", "local_ptr: buf must be a buffer of tle.gpu.alloc, got a run-time value"),
    ("tle.gpu.local_ptr(None)", "TypeError", "local_ptr: buf must be a buffer of tle.gpu.alloc, got None"),
    (
        "tle.gpu.local_ptr(tle.gpu.local_ptr(flat))",
        "TypeError",
        "local_ptr: buf must be a buffer of tle.gpu.alloc, got a run-time value (local_pointers)",
    ),
    ("tle.gpu.local_ptr(b, (i,))", "ValueError", "indices must be 2, one per dimension of the buffer [2, 64], got 1"),
    ("tle.gpu.local_ptr(b, (0, i))", "TypeError", "local_ptr: indices must be all scalars or all tensors, got both"),
    ("tle.gpu.local_ptr(flat, (64,))", "ValueError", "local_ptr: index 0 must be in [0, 64), got 64"),
    (
        "tle.gpu.local_ptr(flat, (i * 0.5,))",
        "TypeError",
        "local_ptr: indices must be integers, got a run-time value (fp32 [64])",
    ),
    (
        "tle.gpu.local_ptr(flat, (i < 3,))",
        "TypeError",
        "local_ptr: indices must be integers, got a run-time value (int1 [64])",
    ),
    (
        "tle.gpu.local_ptr(tle.gpu.alloc([3, 64], gl.float32), (i, i))",
        "ValueError",
        "local_ptr: a buffer with indices must have a power of two of elements, got [3, 64]: index a stage of it",
    ),
    (
        "tle.gpu.load(tle.gpu.local_ptr(tle.gpu.alloc([2, 16, 64], gl.float16), (i, i, i)))",
        "NotImplementedError",
        "local_ptr: indices into a buffer of rank 3 need an unswizzled one (alloc(..., nv_mma_shared_layout=False))",
    ),
    (
        "tle.gpu.load(tle.gpu.local_ptr(tle.gpu.alloc([2, 16, 64], gl.float16)))",
        "NotImplementedError",
        "local_ptr: stages of NVMMASharedLayout can only be taken one by one: index a stage first",
    ),
    ("tle.gpu.load(tle.gpu.local_ptr(flat), other=1)", "ValueError", "load: other must come with a mask, got none"),
    (
        "tle.gpu.load(tle.gpu.local_ptr(flat), cache_modifier='.cg')",
        "ValueError",
        "load: cache_modifier must not be given for shared memory",
    ),
    (
        "tle.gpu.atomic_cas(tle.gpu.local_ptr(flat), 0, 1)",
        "NotImplementedError",
        "no Triton has compare-and-swap on shared",
    ),
)
# A buffer without local_ptr, masks and values that are none, functions of plain Triton.
BUFFER = "got a shared-memory buffer (fp32 [64]): shared memory is reached through tle.gpu.local_ptr(buffer)"
MISUSE = (
    ("tle.gpu.load(flat)", "TypeError", f"load: pointer must be of local_ptr, or to global memory, {BUFFER}"),
    ("tle.gpu.store(flat, 1)", "TypeError", f"store: pointer must be of local_ptr, or to global memory, {BUFFER}"),
    (
        "tle.gpu.atomic_add(flat, 1)",
        "TypeError",
        f"atomic_add: pointer must be of local_ptr, or to global memory, {BUFFER}",
    ),
    (
        "tle.gpu.atomic_cas(flat, 0, 1)",
        "TypeError",
        f"atomic_cas: pointer must be of local_ptr, or to global memory, {BUFFER}",
    ),
    ("tle.gpu.load(None)", "TypeError", "load: pointer must be of local_ptr, or to global memory, got None"),
    (
        "tle.gpu.load(i)",
        "TypeError",
        "load: pointer must be of local_ptr, or to global memory, got a run-time value (int32 [64])",
    ),
    (
        "tle.gpu.load(tle.pipe(capacity=2, x=b).writer().acquire(0))",
        "TypeError",
        "load: pointer must be of local_ptr, or to global memory, got a run-time value (pipe_slot)",
    ),
    ("tle.gpu.load(x_ptr + i, mask=i)", "TypeError", "load: mask must be bools, got a run-time value (int32 [64])"),
    ("tle.gpu.load(tle.gpu.local_ptr(flat), mask=3)", "TypeError", "load: mask must be bools, got 3"),
    (
        "tle.gpu.load(tle.gpu.local_ptr(b), mask=i < 3)",
        "ValueError",
        "load: mask must broadcast to the shape [2, 64] of the pointers, got a run-time value (int1 [64])",
    ),
    (
        "tle.gpu.load(tle.gpu.local_ptr(flat), mask=i < 3, other='x')",
        "TypeError",
        "load: other must be a number or a tensor, got 'x'",
    ),
    (
        "tle.gpu.load(tle.gpu.local_ptr(flat), layout=3)",
        "TypeError",
        "load: layout must be a layout of registers of Gluon, got 3",
    ),
    (
        "tle.gpu.load(tle.gpu.local_ptr(b), layout=gl.BlockedLayout([1], [32], [4], [0]))",
        "ValueError",
        "load: layout must have the rank 2 of the buffer, got 1",
    ),
    (
        "tle.gpu.store(tle.gpu.local_ptr(flat), None)",
        "TypeError",
        "store: value must be a number or a tensor, got None",
    ),
    (
        "tle.gpu.store(tle.gpu.local_ptr(flat), flat)",
        "TypeError",
        "store: value must be a number or a tensor, got a shared-memory buffer",
    ),
    (
        "tle.gpu.store(tle.gpu.local_ptr(b), i)",
        "ValueError",
        "store: value must broadcast to the shape [2, 64] of the pointers, got a run-time value (int32 [64])",
    ),
    (
        "tle.gpu.store(tle.gpu.local_ptr(flat), i, mask=i)",
        "TypeError",
        "store: mask must be bools, got a run-time value",
    ),
    (
        "tle.gpu.local_ptr(b, (i, gl.arange(0, 32, gl.BlockedLayout([1], [32], [4], [0]))))",
        "ValueError",
        "local_ptr: indices must have shapes that broadcast to one, got [[64], [32]]",
    ),
    ("tle.gpu.arange(0, 63)", "ValueError", "arange: end - start must be a power of two, got 63 - 0 = 63"),
    ("tle.gpu.arange(0, n)", "TypeError", "arange: end must be a compile-time int, got a run-time value (int32)"),
    (
        "tle.gpu.alloc([64], gl.pointer_type(gl.float32))",
        "TypeError",
        "alloc: dtype must be a Triton type of 8 bits or more",
    ),
    ("tle.gpu.row_layout(16, 64, 0, 4)", "ValueError", "row_layout: vector must be a power of two, got 0"),
    ("tle.pipe(capacity=2, scope=n, x=b)", "ValueError", "pipe: scope must be 'cta', got a run-time value (int32)"),
    (
        "tle.pipe(capacity=2, readers=n, x=b)",
        "ValueError",
        "readers must be a non-empty tuple or list of names, got a run-time",
    ),
    (
        "tle.pipe(capacity=2, x=b).writer().commit(0, tma=n)",
        "ValueError",
        "commit(tma=) must be a non-empty tuple or list of names",
    ),
    (
        "tle.pipe(capacity=2, x=b).writer().acquire(n > 1)",
        "TypeError",
        "an iteration must be an int, an integer scalar or a cursor",
    ),
    (
        "tle.pipe(capacity=2, x=b).reader().wait(0).slot.fields['y']",
        "CompilationError",
        "fields: a name must be one of x, got 'y'",
    ),
    (
        "tle.cumsum(flat)",
        "TypeError",
        "cumsum: input must be a block of one dimension, got a shared-memory buffer (fp32 [64])",
    ),
    ("tle.rank(i)", "TypeError", "rank: is for kernels under @triton.jit, got one under @gluon.jit"),
    ("tle.compact(i > 3)", "TypeError", "compact: is for kernels under @triton.jit, got one under @gluon.jit"),
    (
        "tle.digit_histogram(i, 0, 4)",
        "TypeError",
        "digit_histogram: is for kernels under @triton.jit, got one under @gluon",
    ),
    (
        "tle.extract_tile(i, 0, [4])",
        "TypeError",
        "extract_tile: is for kernels under @triton.jit, got one under @gluon.jit, whose",
    ),
    (
        "tle.insert_tile(flat, i, 0)",
        "TypeError",
        "insert_tile: is for kernels under @triton.jit, got one under @gluon.jit, whose",
    ),
    (
        "tle.load(flat)",
        "TypeError",
        "load: pointer must be a pointer or a block of pointers, got a shared-memory buffer (fp32 [64])",
    ),
)
# Before Triton 3.7 (3.8): what the version lacks, and that it is the version.
SCATTER = (
    "tle.gpu.store(tle.gpu.local_ptr(flat, (i,)), 1)",
    "NotImplementedError",
    "needs Triton 3.7 or newer, this is",
)
ATOMIC = (
    "tle.gpu.atomic_add(tle.gpu.local_ptr(flat, (i,)), 1)",
    "NotImplementedError",
    "needs Triton 3.8 or newer, this is",
)
NARROW = (
    "tle.gpu.atomic_add(tle.gpu.local_ptr(tle.gpu.alloc([64], gl.float16), (i,)), 1)",
    "TypeError",
    "atomic_add: a buffer must hold numbers of 32 or 64 bits, got fp16",
)
FLOAT = (
    "tle.gpu.atomic_max(tle.gpu.local_ptr(flat, (i,)), 1)",
    "TypeError",
    "atomic_max: a buffer must hold integers of 32 or 64 bits, got fp32",
)
# body, error, message, target and options
TARGETS = (
    (
        "tle.pipe(capacity=2, x=b)",
        "NotImplementedError",
        "pipe: the target must be an NVIDIA GPU of sm_90 or newer, got cuda sm80",
        {"arch": 80},
    ),
    (
        "tle.pipe(capacity=2, name='q', x=b)",
        "NotImplementedError",
        "pipe q: the target must be an NVIDIA GPU of sm_90 or newer, got hip gfx942",
        {"arch": "gfx942", "backend": "hip"},
    ),
    ("tle.gpu.alloc([64], gl.float32)", "NotImplementedError", "alloc: num_ctas must be 1, got 2", {"num_ctas": 2}),
)


def expected() -> dict[str, tuple[str, str, dict]]:
    """body -> error, message, options."""
    from tle_ops.language._compat import HAS_ATOMICS, HAS_SCATTER

    rows = [*PIPE, *GPU, *MISUSE, *([] if HAS_SCATTER else [SCATTER]), *((NARROW, FLOAT) if HAS_ATOMICS else [ATOMIC])]
    table = {body: (error, message, {}) for body, error, message in rows}
    for body, error, message, options in TARGETS:
        table[f"{body} on {options}"] = (error, message, options)
    return table


def cases():
    """name, kernel, signature, options."""
    with tempfile.TemporaryDirectory() as folder:  # Triton reads the source of a kernel from its file
        for number, (name, (_, _, options)) in enumerate(expected().items()):
            path = pathlib.Path(folder) / f"case{number}.py"
            path.write_text(KERNEL.format(name.split(" on {")[0]))
            spec = importlib.util.spec_from_file_location(path.stem, path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            yield name, module.kernel, {"x_ptr": "*fp32", "n": "i32"}, options
