// CUDA's built-ins as host functions; tests/emulator.py puts this in front of a kernel that TileLang generated.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__
#undef __shared__
#define __shared__ static
#undef __forceinline__
#define __forceinline__ inline
#undef __grid_constant__
#define __grid_constant__

struct emu_dim {
  unsigned x, y, z;
};
extern emu_dim emu_tid, emu_bid, emu_bdim, emu_gdim;
#define threadIdx emu_tid
#define blockIdx emu_bid
#define blockDim emu_bdim
#define gridDim emu_gdim

#define TLE_EMULATED
namespace emu {
void barrier(int id, int count);
void cluster_barrier();
unsigned char* shared();
void* peer(const void* place, int rank);
void warp_exchange(const void* value, size_t bytes, void* all_32);
int lane();
int nthreads();

template <class T> inline T shfl(T v, int source) {
  T all[32];
  warp_exchange(&v, sizeof(T), all);
  return all[source & 31];
}
template <class T, class F> inline T redux(T v, F f) {
  T all[32];
  warp_exchange(&v, sizeof(T), all);
  T r = all[0];
  for (int i = 1; i < 32; i++) r = f(r, all[i]);
  return r;
}
template <class To, class From> inline To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof(To));
  return y;
}
}  // namespace emu

// --- barriers and warps --------------------------------------------------------------------------------------------
inline void __syncthreads() { emu::barrier(0, emu::nthreads()); }
inline void __syncwarp(unsigned = 0xffffffffu) {
  char c = 0, all[32];
  emu::warp_exchange(&c, 1, all);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T> inline T __shfl_xor_sync(unsigned, T v, int mask, int = 32) {
  return emu::shfl(v, emu::lane() ^ mask);
}
template <class T> inline T __shfl_sync(unsigned, T v, int source, int w = 32) {
  return emu::shfl(v, (emu::lane() & ~(w - 1)) | (source & (w - 1)));
}
template <class T> inline T __shfl_down_sync(unsigned, T v, unsigned delta, int w = 32) {
  int l = emu::lane();
  return emu::shfl(v, (l & (w - 1)) + (int)delta < w ? l + (int)delta : l);
}
template <class T> inline T __shfl_up_sync(unsigned, T v, unsigned delta, int w = 32) {
  int l = emu::lane();
  return emu::shfl(v, (l & (w - 1)) >= (int)delta ? l - (int)delta : l);
}
template <class T> inline T __reduce_add_sync(unsigned, T v) { return emu::redux(v, [](T a, T b) { return a + b; }); }
template <class T> inline T __reduce_max_sync(unsigned, T v) {
  return emu::redux(v, [](T a, T b) { return a > b ? a : b; });
}
template <class T> inline T __reduce_min_sync(unsigned, T v) {
  return emu::redux(v, [](T a, T b) { return a < b ? a : b; });
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  int all[32];
  emu::warp_exchange(&predicate, sizeof(int), all);
  unsigned r = 0;
  for (int i = 0; i < 32; i++)
    if (all[i]) r |= 1u << i;
  return r;
}
inline int __any_sync(unsigned m, int predicate) { return __ballot_sync(m, predicate) != 0; }
inline int __all_sync(unsigned m, int predicate) { return __ballot_sync(m, predicate) == 0xffffffffu; }
inline unsigned __activemask() { return 0xffffffffu; }

// --- memory --------------------------------------------------------------------------------------------------------
template <class T> inline T __ldg(const T* p) { return *p; }
inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
template <class T, class U> inline T atomicAdd(T* p, U v) {
  T old = *p;
  *p = (T)(old + (T)v);
  return old;
}
template <class T, class U> inline T atomicMax(T* p, U v) {
  T old = *p;
  if ((T)v > old) *p = (T)v;
  return old;
}
template <class T, class U> inline T atomicMin(T* p, U v) {
  T old = *p;
  if ((T)v < old) *p = (T)v;
  return old;
}
inline unsigned tle_peer(const unsigned* p, int rank) { return *(unsigned*)emu::peer(p, rank); }
template <class T, class U> inline T AtomicAdd(T* p, U v, int = 0) { return atomicAdd(p, v); }
template <class T, class U> inline T AtomicAddRet(T* p, U v, int = 0) { return atomicAdd(p, v); }
template <class T, class U> inline T AtomicMax(T* p, U v, int = 0) { return atomicMax(p, v); }
template <class T, class U> inline T AtomicMin(T* p, U v, int = 0) { return atomicMin(p, v); }

// --- integers ------------------------------------------------------------------------------------------------------
static const int warpSize = 32;
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline unsigned __vmaxu2(unsigned a, unsigned b) {  // the maxima of two 16-bit halves
  unsigned low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff;
  unsigned high = a >> 16 > b >> 16 ? a >> 16 : b >> 16;
  return high << 16 | low;
}
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline long max(long a, long b) { return a > b ? a : b; }
inline long min(long a, long b) { return a < b ? a : b; }

// --- floats: max and min return the operand that is not NaN; fast intrinsics are the exact functions here ----------
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return emu::bit_cast<int>(x); }
inline float __int_as_float(int x) { return emu::bit_cast<float>(x); }
using std::isfinite;
using std::isinf;
using std::isnan;

#define EMU_HALF(name, expression)                       \
  inline __half name(__half v) {                         \
    float x = __half2float(v);                           \
    return __float2half(expression);                     \
  }                                                      \
  inline __nv_bfloat16 name(__nv_bfloat16 v) {           \
    float x = __bfloat162float(v);                       \
    return __float2bfloat16(expression);                 \
  }
EMU_HALF(hrsqrt, 1.0f / sqrtf(x))
EMU_HALF(hsqrt, sqrtf(x))
EMU_HALF(hrcp, 1.0f / x)
EMU_HALF(hexp, expf(x))
EMU_HALF(hexp2, exp2f(x))
EMU_HALF(hexp10, powf(10.f, x))
EMU_HALF(hlog, logf(x))
EMU_HALF(hlog2, log2f(x))
EMU_HALF(hlog10, log10f(x))
EMU_HALF(hsin, sinf(x))
EMU_HALF(hcos, cosf(x))
EMU_HALF(hfloor, floorf(x))
EMU_HALF(hceil, ceilf(x))
EMU_HALF(hrint, rintf(x))
EMU_HALF(htrunc, truncf(x))
inline __half __hfma(__half a, __half b, __half c) {
  return __float2half(fmaf(__half2float(a), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16(fmaf(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
