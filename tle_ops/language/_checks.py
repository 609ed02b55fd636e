"""What the device functions in Triton refuse, while a kernel is traced or interpreted. A message begins with the name
of the function, says the rule, and shows what came.

A run-time value is known in the interpreter only. There it is checked too wherever a wrong one would lead to memory
that is not there, which would end the process without a word.
"""

import functools

import triton.language as tl
from triton import knobs

from tle_ops.language.mesh import device_mesh, is_int, plain, shown


def check(function):
    """A call of `function` inside a kernel leaves no code behind; its arguments come without their wrappers."""

    @functools.wraps(function)
    def call(*args, _semantic=None, **kwargs):
        function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})

    call.__triton_builtin__ = True
    return call


def triton_only(op, what, _semantic=None):
    """In a Gluon kernel a TypeError: its blocks have layouts, of which plain Triton's functions know nothing."""
    if hasattr(_semantic, "allocate_shared"):
        raise TypeError(f"{plain(op)}: is for kernels under @triton.jit, got one under @gluon.jit{plain(what)}")


triton_only.__triton_builtin__ = True


# --- what a value is -------------------------------------------------------------------------------------------------
def is_pointer(value) -> bool:
    return isinstance(value, tl.tensor) and value.type.scalar.is_ptr()


def is_scalar(value) -> bool:
    """An integer scalar at run time. Bools are no integers."""
    return (
        isinstance(value, tl.tensor)
        and not value.type.is_block()
        and value.dtype.is_int()
        and not value.dtype.is_int1()
    )


def number(value) -> int | None:
    """Of an int or a scalar, if it can be known."""
    if value is None or is_int(value):
        return value
    return int(value.handle.data.item()) if knobs.runtime.interpret else None


# --- checks ----------------------------------------------------------------------------------------------------------
@check
def block(op, name, x):
    if not isinstance(x, tl.tensor):
        raise TypeError(f"{op}: {name} must be a block, got {shown(x)}")
    if not x.type.is_block():
        raise ValueError(f"{op}: {name} must have dimensions, got a scalar")


@check
def row(op, name, x, scalar=False, integers=False):
    """A block [BLOCK] of numbers, of integers, or (`scalar`) one number."""
    if not isinstance(x, tl.tensor):
        raise TypeError(f"{op}: {name} must be a block of one dimension, got {shown(x)}")
    if is_pointer(x) or (integers and not x.dtype.is_int()):
        raise TypeError(f"{op}: {name} must be {'integers' if integers else 'numbers'}, got {shown(x)}")
    if len(x.shape) != 1 and not (scalar and len(x.shape) == 0):
        raise ValueError(f"{op}: {name} must be a block of one dimension, got {shown(x)}")


@check
def mask(op, value, keys=None):
    """None or bools; as many as there are keys."""
    if value is None or isinstance(value, bool):
        return
    if not isinstance(value, tl.tensor) or not value.dtype.is_int1():
        raise TypeError(f"{op}: mask must be bools, got {shown(value)}")
    if keys is not None and value.type.is_block() and list(value.shape) != list(keys.shape):
        raise ValueError(f"{op}: mask must have the shape {[int(n) for n in keys.shape]}, got {shown(value)}")


@check
def flag(op, name, value):
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be a compile-time bool, got {shown(value)}")


@check
def axis(op, value):
    if not is_int(value):
        raise TypeError(f"{op}: axis must be 0 (or -1), got {shown(value)}")
    if value not in (0, -1):
        raise ValueError(f"{op}: axis must be 0 (or -1), got {value}")


@check
def size(op, name, value, low, high):
    """A compile-time int in [low, high)."""
    if not is_int(value):
        raise TypeError(f"{op}: {name} must be a compile-time int, got {shown(value)}")
    if not low <= value < high:
        raise ValueError(f"{op}: {name} must be in [{low}, {high}), got {value}")


@check
def index(op, name, value, low=0, high=None):
    """An int or an integer scalar, in [low, high) as far as all three are known."""
    if not is_int(value) and not is_scalar(value):
        raise TypeError(f"{op}: {name} must be an int or an integer scalar, got {shown(value)}")
    known, top = number(value), number(high)
    if known is not None and (known < low or (top is not None and known >= top)):
        raise ValueError(f"{op}: {name} must be {f'>= {low}' if top is None else f'in [{low}, {top})'}, got {known}")


@check
def pointers(op, name, x):
    block_pointer = getattr(x, "__triton_block_ptr__", False)  # no tensor in Triton 3.8
    if not is_pointer(x) and not block_pointer:
        raise TypeError(f"{op}: {name} must be a pointer or a block of pointers, got {shown(x)}")


@check
def dtype_of_sums(op, value):
    if value is None:
        return
    if not isinstance(value, tl.dtype):
        raise TypeError(f"{op}: dtype must be a dtype of Triton, such as tl.float32, got {shown(value)}")
    if value.is_ptr() or value.is_fp8() or value.is_int1() or not (value.is_floating() or value.is_int()):
        raise TypeError(f"{op}: dtype must be of integers from 8 bits or of floats from 16 bits on, got {value}")


# --- of tiles --------------------------------------------------------------------------------------------------------
@check
def tile_shape(op, shape, tile_shape):
    if (shape is None) == (tile_shape is None):
        raise ValueError(f"{op}: one of shape and tile_shape must be given, got {'none' if shape is None else 'both'}")
    given = tile_shape if shape is None else shape
    for n in given if isinstance(given, tuple) else (given,):
        if not is_int(n):
            raise TypeError(f"{op}: shape must be compile-time ints, got {shown(n)}")


@check
def tile_index(op, value):
    for i in value if isinstance(value, tuple) else (value,):
        if not is_int(i) and not is_scalar(i):
            raise TypeError(f"{op}: index must be of ints and integer scalars, got {shown(i)}")


@check
def same_dtype(op, x, tile):
    if x.dtype != tile.dtype:
        raise TypeError(f"{op}: tile must have the dtype of the block, {x.dtype}, got {tile.dtype}")


# --- of the functions that know other processes ----------------------------------------------------------------------
@check
def mesh(op, value):
    if not isinstance(value, device_mesh):
        raise TypeError(f"{op}: mesh must be a device_mesh, got {shown(value)}")


@check
def context(op, value, counters=False):
    wanted = "an int64 tensor of device_context" + (", or int32 counters" if counters else "")
    if value is None:
        raise ValueError(f"{op}: context must be given{', int32 counters at least' if counters else ''}, got None")
    if not is_pointer(value) or value.type.is_block() or value.dtype.element_ty != tl.int64:
        raise TypeError(f"{op}: context must be {wanted}, got {shown(value)}")


@check
def processes(op, there, wanted):
    if number(there) is not None and number(there) < wanted:
        raise ValueError(f"{op}: context must have the {wanted} processes of the mesh, got {number(there)}")


@check
def shard(shard_id, space):
    for entry in shard_id if isinstance(shard_id, tuple) else (shard_id,):
        if not is_int(entry) and not is_scalar(entry):
            raise TypeError(f"remote: shard_id must be an int, a scalar or a tuple of them, got {shown(shard_id)}")
    if space is None or (isinstance(space, str) and space == "device"):
        return
    reasons = {
        "cluster": "stock Triton has no pointer to another block's shared memory (TileLang's copy_cluster has)",
        "node": "a node that symmetric memory does not reach needs NVSHMEM",
    }
    if not isinstance(space, str) or space not in reasons:
        raise ValueError(f"remote: space must be 'device', got {shown(space)}")
    raise NotImplementedError(f"remote: space {space!r} is not available: {reasons[space]}")


@check
def blocks_can_meet(op, count):
    if knobs.runtime.interpret and count > 1:
        raise NotImplementedError(f"{op}: {count} blocks cannot meet in the interpreter, which runs one after another")
