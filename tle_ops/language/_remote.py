"""tle.shard_id, tle.remote, tle.distributed_barrier: who am I, the memory of another process, waiting for others.

Stock Triton knows nothing of other devices. What a kernel must know comes in one argument, the *context* of this
process: int64 [rank, processes, channels, address of each process's buffer .., address of each one's signals ..], made
by `device_context` from the addresses that symmetric memory gives. Signals are int32, at first 0, in every process:

    signals[channel, peer]         arrivals of `peer` that this process has not yet met
    signals[channels, channel]     of the barrier among this process's own blocks
"""

import torch
import triton
import triton.language as tl
from triton import knobs

from tle_ops.language.mesh import Shard, device_mesh

_BUFFERS = tl.constexpr(3)  # where the addresses begin
_WORD = tl.constexpr(32)
_PROGRAMS = tl.constexpr("distributed_barrier: a launch must have as many programs as the mesh has blocks")
_OUTSIDE = tl.constexpr("remote: shard_id out of range")


# --- host ------------------------------------------------------------------------------------------------------------
def signal_count(processes: int, channels: int) -> int:
    """Signals of one process, of 4 bytes each, which must be 0 before the first kernel runs on any process."""
    return (processes + 1) * channels


def device_context(
    rank: int, buffers: list[int], signals: list[int], channels: int, device: torch.device | str | int
) -> torch.Tensor:
    """The context of this process. buffers, signals: the addresses, as this process sees them, of every process's
    buffer and signals, 16-byte aligned. channels: how many barriers may be under way at a time; each program of a
    launch takes one."""
    if len(buffers) != len(signals) or not 0 <= rank < len(buffers):
        raise ValueError(f"device_context: rank must be one of {len(buffers)} and {len(signals)} processes, got {rank}")
    if channels <= 0:
        raise ValueError(f"device_context: channels must be positive, got {channels}")
    if odd := [a for a in (*buffers, *signals) if a % 16]:
        raise ValueError(f"device_context: addresses must be 16-byte aligned, got {odd[0]:#x}")
    return torch.tensor([rank, len(buffers), channels, *buffers, *signals], dtype=torch.int64, device=device)


# --- compile-time arithmetic on meshes -------------------------------------------------------------------------------
@triton.constexpr_function
def _place(mesh, axis, context):
    if not isinstance(mesh, device_mesh):
        raise TypeError(f"shard_id: mesh must be a device_mesh, got {mesh!r}")
    return mesh.launch_place(axis, has_context=context is not None)


@triton.constexpr_function
def _check_context(op, context):
    if context is None:
        raise ValueError(f"{op}: context must be given, got None")
    kind = getattr(context, "dtype", None)
    if kind is None or not kind.is_ptr() or kind.element_ty != tl.int64:
        raise TypeError(f"{op}: context must be an int64 tensor of device_context, got {kind or context}")


@triton.constexpr_function
def _shard(shard_id, scope, space):
    if space not in (None, "device"):
        reason = {
            "cluster": "stock Triton has no pointer to another block's shared memory (TileLang's copy_cluster has)",
            "node": "a node that symmetric memory does not reach needs NVSHMEM",
        }
        if space not in reason:
            raise ValueError(f"remote: space must be 'device', got {space!r}")
        raise NotImplementedError(f"remote: space {space!r} is not available: {reason[space]}")
    return Shard(shard_id, scope)


@triton.constexpr_function
def _element_shift(tensor):
    """log2 of the bytes of what a pointer points to."""
    if not tensor.dtype.is_ptr():
        raise TypeError(f"remote: tensor must be a pointer or a block of pointers, got {tensor.dtype}")
    return max((tensor.dtype.element_ty.primitive_bitwidth // 8).bit_length() - 1, 0)


@triton.constexpr_function
def _words(members, count):
    """A set of numbers below `count` as the bits of 32-bit words."""
    words = [0] * ((count + 31) // 32)
    for m in members:
        words[m // 32] |= 1 << (m % 32)
    return tuple(words)


@triton.constexpr_function
def _is_counters(context):
    """Whether the context is the counters alone: enough for a barrier among the blocks of one device."""
    kind = getattr(context, "dtype", None)
    return kind is not None and kind.is_ptr() and kind.element_ty == tl.int32


@triton.constexpr_function
def _party(mesh, context):
    """The members of a barrier: (ranks, processes of the launch, blocks, blocks of the launch)."""
    op = "distributed_barrier"
    if not isinstance(mesh, device_mesh):
        raise TypeError(f"{op}: mesh must be a device_mesh, got {mesh!r}")
    if len(mesh.ranks) * len(mesh.blocks) != mesh.size:
        raise NotImplementedError(f"{op}: a mesh must have the same blocks on every process, got {mesh!r}")
    processes = mesh.launch_size("process")
    if processes > 1 or not _is_counters(context):
        _check_context(op, context)
    if knobs.runtime.interpret and len(mesh.blocks) > 1:
        n = len(mesh.blocks)
        raise NotImplementedError(f"{op}: {n} blocks cannot meet in the interpreter, which runs one after another")
    return mesh.ranks, processes, mesh.blocks, mesh.launch_size("cluster", "block")


# --- device functions ------------------------------------------------------------------------------------------------
@triton.jit
def _program():
    """Number of this program in its launch, x fastest."""
    return tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))


@triton.jit
def shard_id(mesh: tl.constexpr, axis: tl.constexpr, context=None):
    """This process's, or this block's, coordinate along an axis of the whole mesh: an int32 scalar.

    axis: a name, or a number (negative ones count from the end). Along an axis of processes it comes from `context`
    (see `device_context`); along one of blocks from the number of the program.
    """
    place: tl.constexpr = _place(mesh, axis, context)
    if place[0] == "process":
        _check_context("shard_id", context)
        mine = tl.load(context).to(tl.int32)
    else:
        mine = _program()
    return mine // place[2] % place[1]


@triton.jit
def _coordinate(shard_id, shard: tl.constexpr, d: tl.constexpr):
    if shard.linear:
        stride: tl.constexpr = _row_major_stride(shard, d)
        return shard_id // stride % shard.bounds[d]
    else:
        return shard_id[d]


@triton.constexpr_function
def _row_major_stride(shard, d):
    stride = 1
    for n in shard.bounds[d + 1 :]:
        stride *= n
    return stride


@triton.jit
def _rank(shard_id, shard: tl.constexpr):
    if shard.rank is not None:
        return tl.full((), shard.rank, tl.int32)
    elif shard.strides is None:
        return shard_id
    else:
        rank = shard.offset
        for d in tl.static_range(len(shard.bounds)):
            c = _coordinate(shard_id, shard, d)
            tl.device_assert((c >= 0) & (c < shard.bounds[d]), _OUTSIDE)
            rank += c * shard.strides[d]
        return rank


@triton.jit
def remote(tensor, shard_id, scope: tl.constexpr = None, context=None, space: tl.constexpr = None):
    """The pointers of the same elements in the memory of another process, to load from, to store to, to count in.

    tensor: a pointer or a block of pointers into this process's symmetric buffer.
    shard_id: the process: its coordinates along the process axes of `scope`, or their row-major number; ints, run-time
        scalars or both. Without a scope it is the rank.
    context: of this process, see `device_context`.

    What is known at compile time is checked then (ValueError); run-time coordinates in debug mode.
    """
    _check_context("remote", context)
    shard: tl.constexpr = _shard(shard_id, scope, space)
    shift: tl.constexpr = _element_shift(tensor)
    rank = _rank(shard_id, shard)
    tl.device_assert((rank >= 0) & (rank < tl.load(context + 1)), _OUTSIDE)
    here = tl.load(context + _BUFFERS + tl.load(context))
    there = tl.load(context + _BUFFERS + rank)
    # In elements, with what is known of the alignment: loads through the result are as wide as through `tensor`.
    return tensor + tl.multiple_of((there - here) >> shift, 16 >> shift)


@triton.jit
def _contains(words: tl.constexpr, i):
    """Whether the numbers i are in a set of `_words`."""
    found = i < 0
    for w in tl.static_range(len(words)):
        found = found | ((i // _WORD == w) & (((words[w] >> (i % _WORD).to(tl.int64)) & 1) != 0))
    return found


@triton.jit
def _meet_processes(context, ranks: tl.constexpr, PROCESSES: tl.constexpr, channel, polls):
    """Tell every other member that this one is here, wait for all of them, and take their signals back. A signal is a
    count: a member that is a round ahead raises it to 2, and members may differ from one barrier to the next."""
    world = tl.load(context + 1)  # a mesh may be of the first processes only
    tl.device_assert(world >= PROCESSES, "distributed_barrier: more processes than the context has")
    tl.device_assert(channel < tl.load(context + 2), "distributed_barrier: more channels than the context has")
    me = tl.load(context).to(tl.int32)
    peer = tl.arange(0, triton.next_power_of_2(PROCESSES))
    others = _contains(_words(ranks, PROCESSES), peer) & (peer != me)
    row = channel * world
    table = context + _BUFFERS + world
    theirs = tl.load(table + peer, mask=others, other=0).to(tl.pointer_type(tl.int32)) + row + me
    mine = tl.load(table + me).to(tl.pointer_type(tl.int32)) + row + peer
    tl.debug_barrier()  # what this block's other threads stored comes before the signal
    tl.atomic_add(theirs, 1, mask=others, sem="release", scope="sys")
    missing = tl.sum(others.to(tl.int32), 0)
    looks = tl.full((), 0, tl.int64)
    while missing > 0:
        arrived = tl.atomic_add(mine, 0, mask=others, sem="acquire", scope="sys")
        missing = tl.sum((others & (arrived <= 0)).to(tl.int32), 0)
        if polls is not None:
            looks += 1
            if (looks >= polls) & (missing > 0):
                missing = -missing
    if missing == 0:
        tl.atomic_add(mine, -1, mask=others, sem="relaxed", scope="sys")
    tl.debug_barrier()
    return -missing


@triton.jit
def _meet_blocks(counter, blocks: tl.constexpr, program):
    """The first member adds 2^31 less the number of the others, who add 1 each: the sign changes when the last arrives,
    and the rest is as before, so the counter is ready for another barrier."""
    tl.debug_barrier()
    others: tl.constexpr = len(blocks) - 1
    if program == blocks[0]:
        before = tl.atomic_add(counter, 2147483648 - others, sem="acq_rel", scope="gpu")
    else:
        before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    now = before
    while (now ^ before) >= 0:
        now = tl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def _counter(context, channel):
    """Where the blocks of this process count themselves."""
    if _is_counters(context):
        return context + channel
    else:
        world = tl.load(context + 1)
        signals = tl.load(context + _BUFFERS + world + tl.load(context)).to(tl.pointer_type(tl.int32))
        return signals + tl.load(context + 2) * world + channel


@triton.jit
def distributed_barrier(mesh: tl.constexpr, context=None, index=None, polls=None):
    """Wait until every member of the mesh has come here; what they wrote before can be read after. For a program that
    is no member it does nothing.

    A mesh of processes: program i of one process meets program i of the others. A mesh of blocks: the programs of one
    launch meet, which takes `launch_cooperative_grid=True` and as many programs as the whole mesh has blocks. A mesh of
    both: all meet.
    context: see `device_context`. For blocks alone a tensor of int32, at first 0, will do.
    index: the channel: barriers under way at once need different ones. Default: the number of the program in a mesh of
        processes, else 0.
    polls: how often to look for the other processes before giving up. Default: without end.

    Returns how many processes were missing when it gave up: 0 without `polls`. If any, the host must set the signals to
    0 before they are used again.
    """
    party: tl.constexpr = _party(mesh, context)
    ranks: tl.constexpr = party[0]
    PROCESSES: tl.constexpr = party[1]
    blocks: tl.constexpr = party[2]
    BLOCKS: tl.constexpr = party[3]
    program = _program()
    channel = program if BLOCKS == 1 else program * 0
    if index is not None:
        channel = program * 0 + index
    here = program >= 0
    if BLOCKS > 1:
        tl.device_assert(tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2) == BLOCKS, _PROGRAMS)
        here = _contains(_words(blocks, BLOCKS), program)
    if len(ranks) < PROCESSES:
        here = here & _contains(_words(ranks, PROCESSES), tl.load(context).to(tl.int32))
    missing = program * 0
    if here:
        if len(blocks) > 1:
            _meet_blocks(_counter(context, channel), blocks, program)
        if len(ranks) > 1:
            if BLOCKS == 1 or program == blocks[0]:
                missing = _meet_processes(context, ranks, PROCESSES, channel, polls)
            if len(blocks) > 1:
                _meet_blocks(_counter(context, channel), blocks, program)
    return missing
