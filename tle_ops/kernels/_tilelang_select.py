"""What a selection by a cluster of blocks is made of: keys, sums over a block, the search for a key, and the one thing
that TileLang has no word for, a read of another block's shared memory.

Keys are unsigned 32-bit integers in the order of the values: every NaN the greatest, -0.0 equal to 0.0; inverted if the
least are sought. Local arrays of one element are results of macros.
"""

import tilelang.language as T

INF_KEY = 0xFF800000
FAR = 1 << 31
GREATEST = 0xFFFFFFFF

# Functions of keys are CUDA because TVM would make x > limit of `!(x <= limit)`, which is not so of NaN, and because it
# takes its time over expressions. tests/emulator_prelude.h has its own tle_peer.
PRELUDE = r"""
#include <tl_templates/cuda/cluster.h>
#ifndef TLE_EMULATED
TL_DEVICE unsigned tle_peer(const unsigned* p, int rank) {
  unsigned value;
  asm volatile("{\n.reg .b32 a;\nmapa.shared::cluster.u32 a, %1, %2;\nld.shared::cluster.u32 %0, [a];\n}"
               : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(rank) : "memory");
  return value;
}
#endif
TL_DEVICE bool tle_exceeds(float x, float limit) { return !(x <= limit); }
TL_DEVICE unsigned tle_key(float x) {
  unsigned bits = __float_as_uint(x);
  unsigned key = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (x == 0.0f) key = 0x80000000u;
  return x != x ? 0xFFFFFFFFu : key;
}
TL_DEVICE float tle_value(unsigned key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key); }
// Somewhere in the i-th of equal strata, 1 << bits long
TL_DEVICE unsigned tle_scatter(unsigned i, int bits) {
  unsigned jitter = (i ^ (i >> 7)) * 2654435769u;
  jitter = (jitter ^ (jitter >> 15)) * 2246822519u;
  return (i << bits) + ((jitter ^ (jitter >> 13)) & ((1u << bits) - 1));
}
"""


def u32(x):
    return T.cast(x, "uint32")


def peer(place, rank):
    """A uint32 at the same place of shared memory in the block `rank` of the cluster."""
    return T.call_extern("uint32", "tle_peer", T.address_of(place), rank)


def exceeds(x, limit):
    """x > limit, NaN being the greatest; of a limit that is NaN, true."""
    return T.call_extern("bool", "tle_exceeds", x, limit)


def key_of(x, largest: bool):
    """x float32"""
    key = T.call_extern("uint32", "tle_key", x)
    return key if largest else ~key


def value_of(key, largest: bool):
    """The float32 of a key."""
    return T.call_extern("float32", "tle_value", key if largest else ~key)


def scatter(i, strata: int):
    """Somewhere in the i-th of so many strata of [0, 2^32), a power of two."""
    return T.call_extern("uint32", "tle_scatter", i, 33 - strata.bit_length())


def warp_sum(v):
    return T.call_extern("uint32", "__reduce_add_sync", T.uint32(GREATEST), v)


def warp_max(v):
    return T.call_extern("uint32", "__reduce_max_sync", T.uint32(GREATEST), v)


def warp_min(v):
    return T.call_extern("uint32", "__reduce_min_sync", T.uint32(GREATEST), v)


def distance_bin(distance, bins: int):
    """Of a distance below 2^31 of two keys: bins grow with the distance, about bins / 32 for each power of two."""
    bits = T.reinterpret(T.cast(distance, "float32"), "int32")
    return T.max((bits >> (28 - bins.bit_length() + 1)) - (127 << (bins.bit_length() - 1 - 5)), 0)


def ballot(flag):
    return u32(T.ballot_sync(flag))


def bits_set(word):
    return T.call_extern("int32", "__popc", word)


def lowest_bit(word):
    """Where, from 0, the lowest set bit is; there is one."""
    return T.call_extern("int32", "__ffs", T.cast(word, "int32")) - 1


def bit_length(v):
    return 32 - T.call_extern("int32", "__clz", T.cast(v, "int32"))


@T.macro
def warp_scan(v, lane):
    """v[0] = its sum over the lanes up to this one"""
    for i in T.unroll(5):
        other = T.shfl_up(v[0], 1 << i)
        if lane >= (1 << i):
            v[0] = v[0] + other


@T.macro
def block_scan(v, before, total, totals, t, warps):
    """before[0] = the sum of v[0] over the threads before this one, total[0] over all. totals: shared [warps]; whoever
    writes there again must have synchronized in between."""
    lane = t % 32
    before[0] = v[0]
    warp_scan(before, lane)
    if lane == 31:
        totals[t // 32] = before[0]
    before[0] = before[0] - v[0]
    T.sync_threads()
    total[0] = T.uint32(0)
    if lane < warps:
        total[0] = totals[lane]
    warp_scan(total, lane)
    earlier = T.shfl_sync(total[0], T.max(t // 32 - 1, 0))
    if t >= 32:
        before[0] = before[0] + earlier
    total[0] = T.shfl_sync(total[0], 31)


# The search: a range of keys [lo, hi] that holds the key sought, the `left`-th greatest in the range, and how many keys
# the range holds. Registers, alike in all threads.
LO, HI, LEFT, HELD, SHIFT = range(5)


@T.macro
def start_search(s, lo, hi, left, held):
    s[LO] = lo
    s[HI] = hi
    s[LEFT] = left
    s[HELD] = held


@T.macro
def set_shift(s, bins):
    """Of a key to its bin."""
    s[SHIFT] = u32(T.max(bit_length(s[HI] - s[LO]) - (bins.bit_length() - 1), 0))


@T.macro
def count_key(s, key, hist):
    own = T.alloc_var("uint32", init=key)
    if own >= s[LO] and own <= s[HI]:
        T.atomic_add(hist[T.cast((own - s[LO]) >> s[SHIFT], "int32")], T.uint32(1))


@T.macro
def narrow(s, upper, lower, v, before, total, totals, found, t, warps, bins):
    """s becomes the bin of the key sought. upper, lower: what this thread's two bins hold, the first threads having the
    greatest keys. found: shared [4]. If the range holds fewer keys than are sought, it becomes all that is below it."""
    top, next_ = upper, lower
    v[0] = top + next_
    block_scan(v, before, total, totals, t, warps)
    if before[0] < s[LEFT] and s[LEFT] <= before[0] + v[0]:
        if before[0] + top >= s[LEFT]:
            found[0] = u32(bins - 1 - 2 * t)
            found[1] = before[0]
            found[2] = top
        else:
            found[0] = u32(bins - 2 - 2 * t)
            found[1] = before[0] + top
            found[2] = next_
    T.sync_threads()
    if total[0] < s[LEFT]:
        s[LEFT] = s[LEFT] - total[0]
        s[HI] = s[LO] - T.uint32(1)
        s[LO] = T.uint32(0)
        s[HELD] = T.uint32(GREATEST)
    else:
        s[LO] = s[LO] + (found[0] << s[SHIFT])
        s[HI] = T.min(s[HI] - s[LO], (T.uint32(1) << s[SHIFT]) - T.uint32(1)) + s[LO]
        s[LEFT] = s[LEFT] - found[1]
        s[HELD] = found[2]
