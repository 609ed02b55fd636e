"""What a selection by a cluster of blocks is made of, in CUDA: `_tilelang_select` says what the functions are.

They are CUDA because TVM would make x > limit of `!(x <= limit)`, which is not so of NaN, and because it takes its time
over expressions and branches, which it simplifies some ten times: written in TileLang, these took more than half of the
time to build a kernel. All are inlined, and with that their pointers to registers are gone.
"""

# tests/emulator_prelude.h has its own tle_peer.
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
template <int CLUSTER> TL_DEVICE unsigned tle_joined(const unsigned* list, unsigned place, const unsigned* offsets) {
  int rank = 0;
  unsigned first = 0;
#pragma unroll
  for (int r = 1; r < CLUSTER; r++)
    if (place >= offsets[r]) rank = r, first = offsets[r];
  return tle_peer(list + (place - first), rank);
}

// --- keys and columns
TL_DEVICE bool tle_exceeds(float x, float limit) { return !(x <= limit); }
TL_DEVICE unsigned tle_key(float x) {
  unsigned bits = __float_as_uint(x);
  unsigned key = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (x == 0.0f) key = 0x80000000u;
  return x != x ? 0xFFFFFFFFu : key;
}
TL_DEVICE float tle_value(unsigned key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key); }
template <int STRATA, int RUN> TL_DEVICE int tle_drawn(unsigned i, unsigned begin, unsigned end) {
  const unsigned length = (1ull << 32) / STRATA, run = i / RUN;
  unsigned jitter = (run ^ (run >> 7)) * 2654435769u;
  jitter = (jitter ^ (jitter >> 15)) * 2246822519u;
  unsigned at = run * length + (jitter ^ (jitter >> 13)) % length;
  return (begin + __umulhi(at, end - begin)) / RUN * RUN + i % RUN;
}
TL_DEVICE unsigned tle_within(unsigned word, int first, int begin, int end) {
  if (begin > first) word = begin < first + 32 ? word & (0xFFFFFFFFu << (begin & 31)) : 0;
  return end < first + 32 ? word & ((1u << (end & 31)) - 1) : word;
}

// --- sums over the lanes of a warp and the threads of a block
#define TLE_WARP 0xFFFFFFFFu  // all lanes

TL_DEVICE unsigned tle_warp_scan(unsigned v) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    unsigned other = __shfl_up_sync(TLE_WARP, v, d);
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
  unsigned earlier = __shfl_sync(TLE_WARP, all, max(warp - 1, 0));
  *total = __shfl_sync(TLE_WARP, all, 31);
  return upto - v + (warp > 0 ? earlier : 0);
}

// --- the search for a key: a thread has two bins of the histogram, the first threads those of the greatest keys
enum { TLE_LO, TLE_HI, TLE_LEFT, TLE_HELD, TLE_SHIFT };
#define TLE_UPPER(hist) hist[BINS - 1 - 2 * threadIdx.x]
#define TLE_LOWER(hist) hist[BINS - 2 - 2 * threadIdx.x]

template <int BINS> TL_DEVICE void tle_clear(unsigned* hist) { TLE_UPPER(hist) = TLE_LOWER(hist) = 0; }
template <int BINS> TL_DEVICE void tle_set_shift(unsigned* s) {  // of a key to its bin
  s[TLE_SHIFT] = max(__clz(BINS) + 1 - __clz(s[TLE_HI] - s[TLE_LO]), 0);
}
TL_DEVICE void tle_count(const unsigned* s, unsigned key, unsigned* hist) {
  if (key >= s[TLE_LO] && key <= s[TLE_HI]) atomicAdd(hist + ((key - s[TLE_LO]) >> s[TLE_SHIFT]), 1u);
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
// By the first `count` of the keys that each thread has
template <int BINS, int KEYS>
TL_DEVICE void tle_narrow_by(unsigned* s, const unsigned* keys, int count, unsigned* hist, unsigned* totals,
                             unsigned* found) {
  tle_set_shift<BINS>(s);
#pragma unroll
  for (int e = 0; e < KEYS; e++)
    if (e < count) tle_count(s, keys[e], hist);
  __syncthreads();
  tle_narrow<BINS>(s, TLE_UPPER(hist), TLE_LOWER(hist), totals, found);
  tle_clear<BINS>(hist);
  __syncthreads();
}
template <int BINS, int KEYS>
TL_DEVICE void tle_search(unsigned* s, const unsigned* keys, int count, unsigned* hist, unsigned* totals,
                          unsigned* found, unsigned* tail) {
  while (s[TLE_HELD] != s[TLE_LEFT] && s[TLE_LO] < s[TLE_HI] && s[TLE_HELD] > 32)
    tle_narrow_by<BINS, KEYS>(s, keys, count, hist, totals, found);
  if (s[TLE_HELD] == s[TLE_LEFT] || s[TLE_LO] >= s[TLE_HI]) return;
  // No more keys than a warp has lanes: each is compared with all.
#pragma unroll
  for (int e = 0; e < KEYS; e++)
    if (e < count && keys[e] >= s[TLE_LO] && keys[e] <= s[TLE_HI]) tail[atomicAdd(found + 3, 1u)] = keys[e];
  __syncthreads();
  unsigned lane = threadIdx.x % 32, key = tail[lane], greater = 0, equal = 0;
  for (int i = 0; i < s[TLE_HELD]; i++) {
    greater += tail[i] > key;
    equal += tail[i] == key;
  }
  bool chosen = lane < s[TLE_HELD] && greater < s[TLE_LEFT] && s[TLE_LEFT] <= greater + equal;
  int from = __ffs(__ballot_sync(TLE_WARP, chosen)) - 1;
  s[TLE_LO] = s[TLE_HI] = __shfl_sync(TLE_WARP, key, from);
  s[TLE_LEFT] -= __shfl_sync(TLE_WARP, greater, from);
  s[TLE_HELD] = __shfl_sync(TLE_WARP, equal, from);
}

// --- the bound: bins that grow with the distance from the greatest key, about BINS / 32 for each power of two, show it
// at once, unless that one lies far off
template <int BINS> TL_DEVICE unsigned tle_distance_bin(unsigned distance) {
  const int bits = 31 - __clz(BINS);
  return max((__float_as_int((float)distance) >> (28 - bits)) - (127 << (bits - 5)), 0);
}
template <int BINS, int KEYS>
TL_DEVICE void tle_find_bound(unsigned* s, const unsigned* keys, unsigned rank, unsigned* hist, unsigned* totals,
                              unsigned* found, unsigned* greatest) {
  const unsigned t = threadIdx.x;
  unsigned best = keys[0];
#pragma unroll
  for (int e = 1; e < KEYS; e++) best = max(best, keys[e]);
  best = __reduce_max_sync(TLE_WARP, best);
  if (t % 32 == 0) atomicMax(greatest, best);
  __syncthreads();
  best = *greatest;
#pragma unroll
  for (int e = 0; e < KEYS; e++)
    if (best - keys[e] < 1u << 31) atomicAdd(hist + (BINS - 1 - tle_distance_bin<BINS>(best - keys[e])), 1u);
  __syncthreads();
  unsigned upper = TLE_UPPER(hist), both = upper + TLE_LOWER(hist);
  unsigned total, before = tle_block_scan<BINS / 2>(both, totals, &total);
  tle_clear<BINS>(hist);
  if (before < rank && rank <= before + both) {
    bool in_upper = rank <= before + upper;
    found[0] = 2 * t + !in_upper;
    found[2] = before + (in_upper ? upper : both);
  }
  if (t == 0 && total < rank) {
    found[0] = BINS;
    found[2] = BINS / 2 * KEYS;
  }
  __syncthreads();
  unsigned least = 0xFFFFFFFFu;
#pragma unroll
  for (int e = 0; e < KEYS; e++)
    if (tle_distance_bin<BINS>(best - keys[e]) <= found[0]) least = min(least, keys[e]);
  least = __reduce_min_sync(TLE_WARP, least);
  if (t % 32 == 0) atomicMin(found + 1, least);
  if (t == 0) *greatest = 0;
  __syncthreads();
  s[TLE_LO] = found[1];
  s[TLE_HI] = best;
  s[TLE_LEFT] = rank;
  s[TLE_HELD] = found[2];
  while (s[TLE_LO] < s[TLE_HI] && s[TLE_HELD] > s[TLE_LEFT] + rank / 8)
    tle_narrow_by<BINS, KEYS>(s, keys, KEYS, hist, totals, found);
}
"""
