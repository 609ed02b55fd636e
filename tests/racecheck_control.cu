// What racecheck says of a pipe without Triton. A producer and consumers share three stages in shared memory; mbarriers
// say when a stage is full and when it is empty.
//
//     nvcc -arch=sm_90a -o control tests/racecheck_control.cu
//     compute-sanitizer --tool racecheck ./control elected      hazards are reported
//     compute-sanitizer --tool racecheck ./control all          none
//
// "elected": a barrier of the role's warps, then one thread arrives for all, as Triton's mbarrier.arrive does and so every
// tle.pipe. PTX orders the accesses of all threads before what waits for that arrival (the barrier, then release and
// acquire); racecheck (2025.3) credits the arrival to its one thread only. Seen on an H200. So what it reports between
// roles of a pipe, between a field's stores and loads, is no finding; what it reports within one role would be.
#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr int STAGES = 3, N = 512, CONSUMERS = 128, PRODUCERS = 32;

__device__ uint32_t address(uint64_t* barrier) { return (uint32_t)__cvta_generic_to_shared(barrier); }
__device__ void init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}
__device__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void wait(uint64_t* barrier, int parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
                   address(barrier)),
               "r"(parity)
               : "memory");
}

template <bool ELECTED>
__global__ void pass_on(const float* x, float* y, int n) {
  __shared__ float buffer[STAGES][N];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < STAGES; s++) {
      init(&full[s], ELECTED ? 1 : PRODUCERS);
      init(&empty[s], ELECTED ? 1 : CONSUMERS);
    }
  }
  __syncthreads();
  for (int k = 0; k < n; k++) {
    const int s = k % STAGES, phase = k / STAGES & 1;
    if (t >= CONSUMERS) {
      wait(&empty[s], phase ^ 1);
      for (int i = t - CONSUMERS; i < N; i += PRODUCERS) buffer[s][i] = x[k * N + i];
      if (ELECTED) __syncwarp();
      if (!ELECTED || t == CONSUMERS) arrive(&full[s]);
    } else {
      wait(&full[s], phase);
      for (int i = t; i < N; i += CONSUMERS) y[k * N + i] = buffer[s][N - 1 - i];
      if (ELECTED) asm volatile("bar.sync 1, 128;" ::: "memory");
      if (!ELECTED || t == 0) arrive(&empty[s]);
    }
  }
}

int main(int argc, char** argv) {
  const int n = 60;
  float *x, *y;
  cudaMalloc(&x, n * N * sizeof(float));
  cudaMalloc(&y, n * N * sizeof(float));
  cudaMemset(x, 0, n * N * sizeof(float));
  const bool elected = argc > 1 && !strcmp(argv[1], "elected");
  if (elected) pass_on<true><<<1, CONSUMERS + PRODUCERS>>>(x, y, n);
  else pass_on<false><<<1, CONSUMERS + PRODUCERS>>>(x, y, n);
  printf("%s: %s\n", elected ? "elected" : "all", cudaGetErrorString(cudaDeviceSynchronize()));
}
