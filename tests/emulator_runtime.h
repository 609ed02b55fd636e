// Clusters of blocks one after another, one fiber per thread; tests/emulator.py puts this behind a kernel that TileLang generated.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <ucontext.h>
#include <vector>

emu_dim emu_tid, emu_bid, emu_bdim, emu_gdim;

namespace emu {
const int MOST_BLOCKS = 16;  // of a cluster
const size_t SHARED = 256 * 1024;
alignas(1024) static unsigned char memory[MOST_BLOCKS][SHARED];
struct Fiber {
  ucontext_t context;
  emu_dim tid, bid;
  int index, block;  // within the block, within the cluster
  bool done, waiting;
  char* stack;
};
struct Barrier {
  int arrived = 0;
  std::vector<int> queue;
};
struct Warp {
  int arrived = 0, phase = 0;
  unsigned char buffer[2][32 * 64];
  std::vector<int> queue;
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static std::map<int, Barrier> barriers;  // of every block; at -1 that of the cluster
static int blocks;  // of a cluster
static ucontext_t scheduler;
static int current, live;
static void** arguments;
const size_t STACK = 256 * 1024;
const unsigned char GARBAGE = 0xA5;

int lane() { return fibers[current].index & 31; }
int nthreads() { return (int)fibers.size() / blocks; }
unsigned char* shared() { return memory[fibers[current].block]; }
void* peer(const void* place, int rank) {
  if (rank < 0 || rank >= blocks) abort();
  return memory[rank] + ((unsigned char*)place - shared());
}

static void wait_in(std::vector<int>& queue) {
  queue.push_back(current);
  fibers[current].waiting = true;
  swapcontext(&fibers[current].context, &scheduler);
}
static void wake(std::vector<int>& queue) {
  for (int i : queue) fibers[i].waiting = false;
  queue.clear();
}
static void arrive(Barrier& b, int count) {
  if (++b.arrived < count) return wait_in(b.queue);
  b.arrived = 0;
  wake(b.queue);
}
void barrier(int id, int count) { arrive(barriers[fibers[current].block * 16 + id], count); }
void cluster_barrier() { arrive(barriers[-1], (int)fibers.size()); }
void warp_exchange(const void* value, size_t bytes, void* all) {
  int index = fibers[current].index / 32;
  Warp& w = warps[fibers[current].block * (warps.size() / blocks) + index];
  int phase = w.phase, size = std::min(32, nthreads() - index * 32);
  memcpy(w.buffer[phase] + lane() * bytes, value, bytes);
  if (++w.arrived < size) {
    wait_in(w.queue);
  } else {
    w.arrived = 0;
    w.phase ^= 1;
    wake(w.queue);
  }
  memcpy(all, w.buffer[phase], 32 * bytes);  // two buffers: nobody writes this one before every lane has read it
}
static void entry() {
  emu_call(arguments);
  fibers[current].done = true;
  live--;
  swapcontext(&fibers[current].context, &scheduler);
}

static bool shared_memory_exceeded(size_t size) {
  for (int block = 0; block < blocks; block++) {
    const unsigned char *end = memory[block] + SHARED, *p = memory[block] + size;
    if (p < end && (*p != GARBAGE || memcmp(p, p + 1, end - p - 1))) return true;
  }
  return false;
}

// Runs the threads of a cluster in the chosen order, each until it waits. False: nobody can go on.
static bool run_cluster(int order) {
  size_t n = fibers.size();
  while (live > 0) {
    bool progress = false;
    for (size_t k = 0; k < n; k++) {
      size_t i = order == 0 ? k : order == 1 ? n - 1 - k : (k * 7919 + (size_t)order) % n;
      if (fibers[i].done || fibers[i].waiting) continue;
      progress = true;
      current = (int)i;
      emu_tid = fibers[i].tid;
      emu_bid = fibers[i].bid;
      swapcontext(&scheduler, &fibers[i].context);
    }
    if (!progress) return false;
  }
  return true;
}
static void start_cluster(emu_dim bid) {
  barriers.clear();
  warps.assign((nthreads() + 31) / 32 * blocks, Warp{});
  live = (int)fibers.size();
  memset(memory, GARBAGE, blocks * SHARED);  // uninitialised shared memory is garbage
  for (int k = 0; k < (int)fibers.size(); k++) {
    Fiber& f = fibers[k];
    int i = f.index = k % nthreads();
    f.block = k / nthreads();
    f.tid = {i % emu_bdim.x, i / emu_bdim.x % emu_bdim.y, i / emu_bdim.x / emu_bdim.y};
    f.bid = {bid.x + f.block, bid.y, bid.z};
    f.done = f.waiting = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, entry, 0);
  }
}
}  // namespace emu

// 0: done, 1: deadlock, 2: a block wrote past its `shared` bytes of shared memory.
extern "C" int emu_launch(void** args, const unsigned* extent, int cluster, size_t shared, int order) {
  using namespace emu;
  blocks = cluster;
  arguments = args;
  emu_gdim = {extent[0], extent[1], extent[2]};
  emu_bdim = {extent[3], extent[4], extent[5]};
  fibers.assign((size_t)emu_bdim.x * emu_bdim.y * emu_bdim.z * blocks, Fiber{});
  for (Fiber& f : fibers) f.stack = (char*)malloc(STACK);
  int failed = 0;
  for (unsigned z = 0; z < emu_gdim.z && !failed; z++)
    for (unsigned y = 0; y < emu_gdim.y && !failed; y++)
      for (unsigned x = 0; x < emu_gdim.x && !failed; x += blocks) {
        start_cluster({x, y, z});
        failed = !run_cluster(order) ? 1 : shared_memory_exceeded(shared) ? 2 : 0;
      }
  for (Fiber& f : fibers) free(f.stack);
  return failed;
}
