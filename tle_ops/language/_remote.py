"""tle.shard_id, tle.remote, tle.distributed_barrier: who am I, the memory of another process, waiting for others.

Stock Triton knows nothing of other devices. What a kernel must know comes in one argument, the *context* of this
process: int64 [rank, processes, channels, address of each process's buffer .., address of each one's signals ..], made
by `device_context` from the addresses that symmetric memory gives. Signals are int32, at first 0, in every process:

    signals[channel, peer]         arrivals of `peer` that this process has not yet met
    signals[channels, channel]     of the barrier among this process's own blocks
"""

import triton
import triton.language as tl

from tle_ops.language import _checks
from tle_ops.language.mesh import Shard

_BUFFERS = tl.constexpr(3)  # where the addresses begin
_WORD = tl.constexpr(32)
_PROGRAMS = tl.constexpr("distributed_barrier: a launch must have as many programs as the mesh has blocks")
_OUTSIDE = tl.constexpr("remote: shard_id out of range")


# --- compile-time arithmetic on meshes -------------------------------------------------------------------------------
@triton.constexpr_function
def _place(mesh, axis, context):
    return mesh.launch_place(axis, has_context=context is not None)


@triton.constexpr_function
def _shard(shard_id, scope):
    return Shard(shard_id, scope)


@triton.constexpr_function
def _element_shift(tensor):
    """log2 of the bytes of what a pointer points to."""
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
    if not isinstance(context, tl.tensor) or context.type.is_block():
        return False
    return context.dtype.is_ptr() and context.dtype.element_ty == tl.int32


@triton.constexpr_function
def _party(mesh):
    """The members of a barrier: (ranks, processes of the launch, blocks, blocks of the launch)."""
    if len(mesh.ranks) * len(mesh.blocks) != mesh.size:
        raise NotImplementedError(
            f"distributed_barrier: a mesh must have the same blocks on every process, got {mesh!r}"
        )
    return mesh.ranks, mesh.launch_size("process"), mesh.blocks, mesh.launch_size("cluster", "block")


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
    _checks.mesh("shard_id", mesh)
    place: tl.constexpr = _place(mesh, axis, context)
    if place[0] == "process":
        _checks.context("shard_id", context)
        mine = tl.load(context).to(tl.int32)
    else:
        mine = _program()
    return mine // place[2] % place[1]


@triton.jit
def _coordinate(shard_id, shard: tl.constexpr, d: tl.constexpr):
    if shard.linear:
        stride: tl.constexpr = _row_major_stride(shard, d)
        if d == 0:  # not reduced by the grid: outside it is no process's coordinate
            return shard_id // stride
        else:
            return shard_id // stride % shard.bounds[d]
    else:
        return shard_id[d]


@triton.constexpr_function
def _row_major_stride(shard, d):
    stride = 1
    for n in shard.bounds[d + 1 :]:
        stride *= n
    return stride


@triton.constexpr_function
def _size(shard):
    n = 1
    for bound in shard.bounds:
        n *= bound
    return n


@triton.jit
def _rank(shard_id, shard: tl.constexpr):
    if shard.rank is not None:
        rank: tl.constexpr = shard.rank  # Triton 3.7 returns no plain int
        return rank
    elif shard.strides is None:
        return shard_id
    else:
        rank = shard.offset
        if shard.linear:
            _checks.index("remote", "shard_id", shard_id, 0, _size(shard))
        for d in tl.static_range(len(shard.bounds)):
            c = _coordinate(shard_id, shard, d)
            _checks.index("remote", "shard_id", c, 0, shard.bounds[d])
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

    What is known at compile time is checked then (ValueError); run-time coordinates in debug mode and in the
    interpreter.
    """
    _checks.context("remote", context)
    _checks.pointers("remote", "tensor", tensor)
    _checks.shard(shard_id, space)
    shard: tl.constexpr = _shard(shard_id, scope)
    shift: tl.constexpr = _element_shift(tensor)
    rank = _rank(shard_id, shard)
    world = tl.load(context + 1)
    _checks.index("remote", "shard_id", rank, 0, world)
    tl.device_assert((rank >= 0) & (rank < world), _OUTSIDE)
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
    _checks.processes("distributed_barrier", world, PROCESSES)
    tl.device_assert(world >= PROCESSES, "distributed_barrier: more processes than the context has")
    channels = tl.load(context + 2)
    _checks.index("distributed_barrier", "the channel (index, or the program's number)", channel, 0, channels)
    tl.device_assert((channel >= 0) & (channel < channels), "distributed_barrier: no such channel in the context")
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
    polls: how often to look for the other processes before giving up, once or more. Default: without end.

    Returns how many processes were missing when it gave up: 0 without `polls`. If any, the host must set the signals to
    0 before they are used again.
    """
    _checks.mesh("distributed_barrier", mesh)
    if index is not None:
        _checks.index("distributed_barrier", "index", index)
    if polls is not None:
        _checks.index("distributed_barrier", "polls", polls, 1, 2147483648)
    party: tl.constexpr = _party(mesh)
    ranks: tl.constexpr = party[0]
    PROCESSES: tl.constexpr = party[1]
    blocks: tl.constexpr = party[2]
    BLOCKS: tl.constexpr = party[3]
    if PROCESSES > 1:
        _checks.context("distributed_barrier", context)
        _checks.triton_only("distributed_barrier of processes", "")
    elif not _is_counters(context):
        _checks.context("distributed_barrier", context, True)
    _checks.blocks_can_meet("distributed_barrier", len(blocks))
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
