"""The kernels of `distributed_triton.py`: they read and write the peers' buffers with `tle.remote` and meet them with
`tle.distributed_barrier`. The protocol is in `_symmetric.py`.

Program i of a launch works on the same blocks as program i on every peer, so it need meet only those.
"""

from __future__ import annotations

import triton
import triton.language as tl

import tle_ops.language as tle
from tle_ops.kernels._triton import INTERPRETED, encode, kernel, magnitude, scale_of

_INTERPRETED = tl.constexpr(INTERPRETED)
_BUFFERS = tl.constexpr(3)  # where a context has its addresses


# --- device functions: meeting the peers -----------------------------------------------------------------------------
@triton.jit
def _begin(state_ptr, half16):
    """The number of this call, and where its half of 16 * half16 bytes begins in the workspace."""
    call = tl.load(state_ptr)
    return call, (call & 1).to(tl.int64) * half16 * 16


@triton.jit
def _end(state_ptr):
    """The last program to finish counts the call."""
    tl.debug_barrier()
    if tl.atomic_add(state_ptr + 1, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(state_ptr + 1, 0)
        tl.atomic_add(state_ptr, 1, sem="release", scope="gpu")


@triton.jit
def _meet(context, missing_ptr, channel, polls, MESH: tl.constexpr, W: tl.constexpr):
    """Wait for this channel of every peer; who does not come in time is told to the host."""
    missing = tle.distributed_barrier(MESH, context, index=channel, polls=polls)
    tl.debug_barrier()  # alone in the world, there was none in that
    if missing > 0:
        me = tl.load(context).to(tl.int32)
        signals = tl.load(context + _BUFFERS + W + me).to(tl.pointer_type(tl.int32)) + channel * W
        peer = tl.arange(0, triton.next_power_of_2(W))
        others = (peer < W) & (peer != me)
        arrived = tl.atomic_add(signals + peer, 0, mask=others, sem="acquire", scope="sys")
        tl.store(missing_ptr + peer, 1, mask=others & (arrived <= 0))


@triton.jit
def _tell(arrivals_ptr, call, peer, context):
    """Report a tile to a peer: what this program stored before can be read there after."""
    tl.atomic_max(tle.remote(arrivals_ptr, peer, context=context), call, sem="release", scope="sys")


@triton.jit
def _await(arrival_ptr, call, missing_ptr, polls):
    """Wait until a peer has reported a tile. Returns how often to look the next time: not again at one that is dead."""
    seen = tl.atomic_add(arrival_ptr, 0, sem="acquire", scope="sys")
    left = polls
    while (seen < call) & (left > 0):
        seen = tl.atomic_add(arrival_ptr, 0, sem="acquire", scope="sys")
        left -= 1
    if seen < call:
        tl.store(missing_ptr, 1)
        polls = polls * 0
    tl.debug_barrier()
    return polls


@triton.jit
def _bytes_of(here_ptr, peer, context):
    """`tle.remote` of a pointer to bytes, or FP8, whose distance is known as a multiple of 16. A hint would be lost on
    the way, and then Triton 3.6 moves byte by byte, after a conversion between layouts that loses every other pair."""
    there_ptr = tle.remote(here_ptr, peer, context=context)
    return here_ptr + (there_ptr.to(tl.int64) - here_ptr.to(tl.int64)) // 16 * 16


@triton.jit
def _copy(to_ptr, from_ptr, n16, rest, i, BLOCK: tl.constexpr):
    """Block i of 16 * n16 + rest bytes; the rest goes with block 0."""
    n = n16 * 16  # so that the mask does not keep 16 bytes from being moved at once
    o = tl.full((), BLOCK, tl.int64) * i + tl.arange(0, BLOCK)
    tl.store(to_ptr + o, tl.load(from_ptr + o, mask=o < n), mask=o < n)
    if (i == 0) & (rest > 0):
        tail = n + tl.arange(0, 16)
        tl.store(to_ptr + tail, tl.load(from_ptr + tail, mask=tail < n + rest), mask=tail < n + rest)


# --- kernels ---------------------------------------------------------------------------------------------------------
@kernel("polls", "half16", "n16", "rest", "shard")
def remote_kernel(
    x_ptr, y_ptr, ws_ptr, context, x_context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, n16: tl.int64, rest: tl.int32, shard: tl.int32,
    MESH: tl.constexpr, W: tl.constexpr, DIRECT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x of `shard`. DIRECT: x lies in symmetric memory; else it is laid into the workspace first."""
    _, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    blocks = tl.maximum(tl.cdiv(n16 * 16, BLOCK), 1).to(tl.int32)
    ws_ptr += start
    if not DIRECT:
        for i in range(pid, blocks, tl.num_programs(0)):
            _copy(ws_ptr, x_ptr, n16, rest, i, BLOCK)
    _meet(context, missing_ptr, pid, polls, MESH, W)
    there = _bytes_of(x_ptr, shard, x_context) if DIRECT else _bytes_of(ws_ptr, shard, context)
    for i in range(pid, blocks, tl.num_programs(0)):
        _copy(y_ptr, there, n16, rest, i, BLOCK)
    if DIRECT:  # x may change only when all have read it
        _meet(context, missing_ptr, pid, polls, MESH, W)
    _end(state_ptr)


@kernel("polls", "half16", "n16", "rest", "shard", "source")
def put_kernel(
    x_ptr, value_ptr, y_ptr, ws_ptr, context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, n16: tl.int64, rest: tl.int32, shard: tl.int32, source: tl.int32,
    MESH: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """value goes into the workspace of `shard`; y = what `source` put into this one, or x if source is -1."""
    _, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    blocks = tl.maximum(tl.cdiv(n16 * 16, BLOCK), 1).to(tl.int32)
    ws_ptr += start
    there = _bytes_of(ws_ptr, shard, context)
    for i in range(pid, blocks, tl.num_programs(0)):
        _copy(there, value_ptr, n16, rest, i, BLOCK)
    _meet(context, missing_ptr, pid, polls, MESH, W)
    for i in range(pid, blocks, tl.num_programs(0)):
        if source >= 0:
            _copy(y_ptr, ws_ptr, n16, rest, i, BLOCK)
        else:
            _copy(y_ptr, x_ptr, n16, rest, i, BLOCK)
    _end(state_ptr)


@kernel("polls", "half16", "n", "shard", "notes")
def remote_bwd_kernel(
    dy_ptr, dx_ptr, ws_ptr, context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, n: tl.int64, shard: tl.int32, notes: tl.int64,
    MESH: tl.constexpr, W: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = the sum of the dy of those who read this process's x, in the order of their ranks."""
    _, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    if ALIGNED:
        n = n // 8 * 8
    blocks = tl.cdiv(n, BLOCK).to(tl.int32)
    me = tl.load(context).to(tl.int32)
    ws_ptr += start
    here_ptr = ws_ptr.to(dy_ptr.dtype, bitcast=True)
    note_ptr = (ws_ptr + notes).to(tl.pointer_type(tl.int32)) + pid
    for i in range(pid, blocks, tl.num_programs(0)):
        o = tl.full((), BLOCK, tl.int64) * i + tl.arange(0, BLOCK)
        tl.store(here_ptr + o, tl.load(dy_ptr + o, mask=o < n), mask=o < n)
    tl.store(note_ptr, shard)
    _meet(context, missing_ptr, pid, polls, MESH, W)
    for i in range(pid, blocks, tl.num_programs(0)):
        o = tl.full((), BLOCK, tl.int64) * i + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for r in tl.static_range(W):
            if tl.load(tle.remote(note_ptr, r, context=context)) == me:
                total += tl.load(tle.remote(here_ptr, r, context=context) + o, mask=o < n, other=0.0).to(tl.float32)
        tl.store(dx_ptr + o, total.to(dx_ptr.dtype.element_ty), mask=o < n)
    _end(state_ptr)


@kernel("polls")
def barrier_kernel(context, state_ptr, missing_ptr, polls: tl.int64, MESH: tl.constexpr, W: tl.constexpr):
    _meet(context, missing_ptr, 0, polls, MESH, W)
    _end(state_ptr)


@kernel("polls", "half16", "n16", "rest", "part")
def gather_kernel(
    x_ptr, y_ptr, ws_ptr, context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, n16: tl.int64, rest: tl.int32, part: tl.int64,
    MESH: tl.constexpr, W: tl.constexpr, SCATTER: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """y [W, part bytes] from the x of all; with SCATTER x has W parts too, and a process gets those of its rank."""
    _, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    blocks = tl.maximum(tl.cdiv(n16 * 16, BLOCK), 1).to(tl.int32)
    me = tl.load(context)
    ws_ptr += start
    if ALIGNED:
        part = part // 16 * 16
    for i in range(pid, blocks, tl.num_programs(0)):
        if SCATTER:
            for r in tl.static_range(W):
                _copy(ws_ptr + r * part, x_ptr + r * part, n16, rest, i, BLOCK)
        else:
            _copy(ws_ptr, x_ptr, n16, rest, i, BLOCK)
    _meet(context, missing_ptr, pid, polls, MESH, W)
    for i in range(pid, blocks, tl.num_programs(0)):
        for d in tl.static_range(W):
            r = (me + d) % W  # not all from one peer at once
            there = _bytes_of(ws_ptr, r, context)
            if SCATTER:
                there += me * part
            _copy(y_ptr + r * part, there, n16, rest, i, BLOCK)
    _end(state_ptr)


# --- the fused kernels: a tile of groups is quantized, stored to all peers, reported, and picked up there ------------
@triton.jit
def _quantize(
    x_ptr, groups, t, FP8: tl.constexpr, UE8M0: tl.constexpr, CODE: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr
):
    """Codes [ROWS, G] and scales [ROWS] of tile t, their offsets, and which groups exist."""
    row = tl.full((), ROWS, tl.int64) * t + tl.arange(0, ROWS)
    o = row[:, None] * G + tl.arange(0, G)[None, :]
    inside = row < groups
    x = tl.load(x_ptr + o, mask=inside[:, None], other=0.0).to(tl.float32)
    scale = scale_of(tl.max(magnitude(x), axis=1), FP8, UE8M0)
    return encode(x, scale[:, None], CODE), scale, row, o, inside


@triton.jit
def _product(x, y):
    """x * y, rounded: the compiler must not make a fused multiply-add of it and what follows"""
    if _INTERPRETED:
        return x * y
    else:
        return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, is_pure=True, pack=1)


@kernel("first", "last")
def cast_kernel(
    x_ptr, q_ptr, scales_ptr, stage_q_ptr, stage_scales_ptr, first: tl.int64, last: tl.int64,
    FP8: tl.constexpr, UE8M0: tl.constexpr, CODE: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Codes and scales of groups first .. last - 1, in two places."""
    q, scale, row, o, inside = _quantize(x_ptr + first * G, last - first, tl.program_id(0), FP8, UE8M0, CODE, G, ROWS)
    tl.store(q_ptr + first * G + o, q, mask=inside[:, None])
    tl.store(stage_q_ptr + first * G + o, q, mask=inside[:, None])
    tl.store(scales_ptr + first + row, scale, mask=inside)
    tl.store(stage_scales_ptr + first + row, scale, mask=inside)


@kernel("polls", "half16", "groups")
def all_gather_fp8_kernel(
    x_ptr, q_ptr, scales_ptr, ws_ptr, arrivals_ptr, context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, groups: tl.int64,
    W: tl.constexpr, FP8: tl.constexpr, UE8M0: tl.constexpr, CODE: tl.constexpr,
    G: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """groups: of one process. The workspace has codes [groups, G], then scales [groups]; the peers fetch them tile by
    tile as they are told of them."""
    call, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    tiles = tl.cdiv(groups, ROWS).to(tl.int32)
    me = tl.load(context).to(tl.int32)
    codes_ptr = (ws_ptr + start).to(q_ptr.dtype, bitcast=True)
    sent_ptr = (ws_ptr + start + groups * G).to(tl.pointer_type(tl.float32), bitcast=True)
    mine = me.to(tl.int64) * groups
    for t in range(pid, tiles + programs, programs):
        if t < tiles:
            q, scale, row, o, inside = _quantize(x_ptr, groups, t, FP8, UE8M0, CODE, G, ROWS)
            tl.store(q_ptr + mine * G + o, q, mask=inside[:, None])
            tl.store(scales_ptr + mine + row, scale, mask=inside)
            if W > 1:
                tl.store(codes_ptr + o, q, mask=inside[:, None])
                tl.store(sent_ptr + row, scale, mask=inside)
                tl.debug_barrier()
                for d in tl.static_range(1, W):
                    _tell(arrivals_ptr + me * TILES + t, call, (me + d) % W, context)
        # The tile before: its peers have had the time of one tile to come.
        before = t - programs
        if (before >= 0) & (W > 1):
            row = tl.full((), ROWS, tl.int64) * before + tl.arange(0, ROWS)
            inside = row < groups
            o = row[:, None] * G + tl.arange(0, G)[None, :]
            for d in tl.static_range(1, W):
                peer = (me - d + W) % W
                theirs = peer.to(tl.int64) * groups
                polls = _await(arrivals_ptr + peer * TILES + before, call, missing_ptr + peer, polls)
                from_ptr = _bytes_of(codes_ptr, peer, context)
                from_scales = tle.remote(sent_ptr, peer, context=context)
                # As bytes: a masked-out code has no value in FP8.
                codes = tl.load(from_ptr.to(tl.pointer_type(tl.int8), bitcast=True) + o, mask=inside[:, None])
                tl.store(
                    (q_ptr + theirs * G).to(tl.pointer_type(tl.int8), bitcast=True) + o, codes, mask=inside[:, None]
                )
                tl.store(scales_ptr + theirs + row, tl.load(from_scales + row, mask=inside), mask=inside)
    _end(state_ptr)


@kernel("polls", "half16", "groups")
def reduce_scatter_fp8_kernel(
    x_ptr, y_ptr, ws_ptr, arrivals_ptr, context, state_ptr, missing_ptr,
    polls: tl.int64, half16: tl.int64, groups: tl.int64,
    W: tl.constexpr, FP8: tl.constexpr, UE8M0: tl.constexpr, CODE: tl.constexpr,
    G: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """groups: of one part. Each part's tiles go to the peer of its rank; the workspace has them by the rank they come
    from. The sum runs in the order of the ranks, without fused multiply-adds: the bits of the plain composition."""
    call, start = _begin(state_ptr, half16)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    tiles = tl.cdiv(groups, ROWS).to(tl.int32)
    me = tl.load(context).to(tl.int32)
    codes_ptr = (ws_ptr + start).to(tl.pointer_type(CODE), bitcast=True)
    sent_ptr = (ws_ptr + start + W * groups * G).to(tl.pointer_type(tl.float32), bitcast=True)
    mine = me.to(tl.int64) * groups
    for t in range(pid, tiles + programs, programs):
        if t < tiles:
            for d in tl.static_range(W):
                peer = (me + 1 + d) % W  # the own part last, into the own workspace
                q, scale, row, o, inside = _quantize(
                    x_ptr + peer.to(tl.int64) * groups * G, groups, t, FP8, UE8M0, CODE, G, ROWS
                )
                tl.store(_bytes_of(codes_ptr + mine * G, peer, context) + o, q, mask=inside[:, None])
                tl.store(tle.remote(sent_ptr + mine, peer, context=context) + row, scale, mask=inside)
            tl.debug_barrier()
            for d in tl.static_range(1, W):
                _tell(arrivals_ptr + me * TILES + t, call, (me + d) % W, context)
        before = t - programs
        if before >= 0:
            for d in tl.static_range(1, W):
                peer = (me - d + W) % W
                polls = _await(arrivals_ptr + peer * TILES + before, call, missing_ptr + peer, polls)
            row = tl.full((), ROWS, tl.int64) * before + tl.arange(0, ROWS)
            inside = row < groups
            o = row[:, None] * G + tl.arange(0, G)[None, :]
            total = tl.zeros((ROWS, G), tl.float32)
            for r in tl.static_range(W):
                q = tl.load(codes_ptr + r * groups * G + o, mask=inside[:, None])
                scale = tl.load(sent_ptr + r * groups + row, mask=inside, other=0.0)
                value = _product(q.to(tl.float32), scale[:, None] + tl.zeros((ROWS, G), tl.float32))
                total = value if r == 0 else total + value
            tl.store(y_ptr + o, total.to(y_ptr.dtype.element_ty), mask=inside[:, None])
    _end(state_ptr)
