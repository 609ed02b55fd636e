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
// Somewhere in the i-th of equal strata of a window, of which RUN that lie together are one
template <int STRATA, int RUN> TL_DEVICE int tle_drawn(unsigned i, unsigned begin, unsigned end) {
  const unsigned length = (1ull << 32) / STRATA, run = i / RUN;
  unsigned jitter = (run ^ (run >> 7)) * 2654435769u;
  jitter = (jitter ^ (jitter >> 15)) * 2246822519u;
  unsigned at = run * length + (jitter ^ (jitter >> 13)) % length;
  return (begin + __umulhi(at, end - begin)) / RUN * RUN + i % RUN;
}

template <int BINS> TL_DEVICE unsigned tle_distance_bin(unsigned distance) {
  const int bits = 31 - __clz(BINS);
  return max((__float_as_int((float)distance) >> (28 - bits)) - (127 << (bits - 5)), 0);
}
TL_DEVICE unsigned tle_within(unsigned word, int first, int begin, int end) {
  if (begin > first) word = begin < first + 32 ? word & 0xFFFFFFFFu << (begin & 31) : 0;
  return end < first + 32 ? word & (1u << (end & 31)) - 1 : word;
}

// --- sums over the lanes of a warp and the threads of a block
TL_DEVICE unsigned tle_warp_scan(unsigned v) {
  for (int d = 1; d < 32; d *= 2) {
    unsigned other = __shfl_up_sync(0xFFFFFFFFu, v, d);
    if (threadIdx.x % 32 >= d) v += other;
  }
  return v;
}
template <int THREADS> TL_DEVICE unsigned tle_block_scan(unsigned v, unsigned* totals, unsigned* total) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned upto = tle_warp_scan(v);
  if (lane == 31) totals[warp] = upto;
  __syncthreads();
  unsigned all = tle_warp_scan(lane < THREADS / 32 ? totals[lane] : 0);
  unsigned earlier = __shfl_sync(0xFFFFFFFFu, all, max(warp - 1, 0));
  *total = __shfl_sync(0xFFFFFFFFu, all, 31);
  return upto - v + (warp > 0 ? earlier : 0);
}

// --- the search for a key: s[5] as below, a histogram of two bins a thread
enum { TLE_LO, TLE_HI, TLE_LEFT, TLE_HELD, TLE_SHIFT };
template <int BINS> TL_DEVICE void tle_set_shift(unsigned* s) {
  s[TLE_SHIFT] = max(__clz(BINS) + 1 - __clz(s[TLE_HI] - s[TLE_LO]), 0);
}
TL_DEVICE void tle_count(const unsigned* s, unsigned key, unsigned* hist) {
  if (key >= s[TLE_LO] && key <= s[TLE_HI]) atomicAdd(hist + (key - s[TLE_LO] >> s[TLE_SHIFT]), 1u);
}
template <int BINS>
TL_DEVICE void tle_narrow(unsigned* s, unsigned upper, unsigned lower, unsigned* totals, unsigned* found) {
  unsigned total, before = tle_block_scan<BINS / 2>(upper + lower, totals, &total);
  if (before < s[TLE_LEFT] && s[TLE_LEFT] <= before + upper + lower) {
    bool in_upper = s[TLE_LEFT] <= before + upper;
    found[0] = BINS - 1 - 2 * threadIdx.x - !in_upper;
    found[1] = in_upper ? before : before + upper;
    found[2] = in_upper ? upper : lower;
  }
  __syncthreads();
  if (total < s[TLE_LEFT]) {
    s[TLE_LEFT] -= total;
    s[TLE_HI] = s[TLE_LO] - 1;
    s[TLE_LO] = 0;
    s[TLE_HELD] = 0xFFFFFFFFu;
  } else {
    s[TLE_LO] += found[0] << s[TLE_SHIFT];
    s[TLE_HI] = min(s[TLE_HI] - s[TLE_LO], (1u << s[TLE_SHIFT]) - 1) + s[TLE_LO];
    s[TLE_LEFT] -= found[1];
    s[TLE_HELD] = found[2];
  }
}
"""


def u32(x):
    return T.cast(x, "uint32")


def pointer(buffer):
    return T.address_of(buffer[0])


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


def drawn_column(i, begin, end, strata: int, run: int):
    """Somewhere in the i-th of so many strata of [begin, end), a power of two; `run` columns beside it are drawn too."""
    return T.call_extern("int32", f"tle_drawn<{strata}, {run}>", u32(i), u32(begin), u32(end))


def warp_sum(v):
    return T.call_extern("uint32", "__reduce_add_sync", T.uint32(GREATEST), v)


def warp_max(v):
    return T.call_extern("uint32", "__reduce_max_sync", T.uint32(GREATEST), v)


def warp_min(v):
    return T.call_extern("uint32", "__reduce_min_sync", T.uint32(GREATEST), v)


def distance_bin(distance, bins: int):
    """Of a distance below 2^31 of two keys: bins grow with the distance, about bins / 32 for each power of two."""
    return T.call_extern("uint32", f"tle_distance_bin<{bins}>", distance)


def ballot(flag):
    return u32(T.ballot_sync(flag))


def bits_set(word):
    return T.call_extern("int32", "__popc", word)


def within(word, first, begin, end):
    """Of a word of bits for columns from `first` on, those for [begin, end), where it is not all beyond the end."""
    return T.call_extern("uint32", "tle_within", word, first, begin, end)


def lowest_bit(word):
    """Where, from 0, the lowest set bit is; there is one."""
    return T.call_extern("int32", "__ffs", T.cast(word, "int32")) - 1


def warp_scan(v):
    """The sum of v over the lanes up to this one."""
    return T.call_extern("uint32", "tle_warp_scan", v)


def block_scan(v, total, totals, threads: int):
    """The sum of v over the threads before this one; total[0] = over all. totals: shared [warps]; whoever writes there
    again must have synchronized in between."""
    return T.call_extern("uint32", f"tle_block_scan<{threads}>", v, pointer(totals), pointer(total))


# The search: a range of keys [lo, hi] that holds the key sought, the `left`-th greatest in the range, and how many keys
# the range holds. Registers, alike in all threads.
LO, HI, LEFT, HELD, SHIFT = range(5)


@T.macro
def start_search(s, lo, hi, left, held):
    s[LO] = lo
    s[HI] = hi
    s[LEFT] = left
    s[HELD] = held


def set_shift(s, bins: int):
    """Of a key to its bin."""
    return T.call_extern("void", f"tle_set_shift<{bins}>", pointer(s))


def count_key(s, key, hist):
    return T.call_extern("void", "tle_count", pointer(s), key, pointer(hist))


def narrow(s, upper, lower, totals, found, bins: int):
    """s becomes the bin of the key sought. upper, lower: what this thread's two bins hold, the first threads having the
    greatest keys. found: shared [4]. If the range holds fewer keys than are sought, it becomes all that is below it."""
    return T.call_extern("void", f"tle_narrow<{bins}>", pointer(s), upper, lower, pointer(totals), pointer(found))
