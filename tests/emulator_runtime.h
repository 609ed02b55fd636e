// Blocks one after another, one fiber per thread; tests/emulator.py puts this behind a kernel that TileLang generated.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <ucontext.h>
#include <vector>

emu_dim emu_tid, emu_bid, emu_bdim, emu_gdim;
alignas(1024) unsigned char emu_dyn_smem[256 * 1024];

namespace emu {
struct Fiber {
  ucontext_t context;
  emu_dim tid;
  int index;
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
static std::map<int, Barrier> barriers;
static ucontext_t scheduler;
static int current, live;
static void** arguments;
const size_t STACK = 256 * 1024;
const unsigned char GARBAGE = 0xA5;

int lane() { return fibers[current].index & 31; }
int nthreads() { return (int)fibers.size(); }

static void wait_in(std::vector<int>& queue) {
  queue.push_back(current);
  fibers[current].waiting = true;
  swapcontext(&fibers[current].context, &scheduler);
}
static void wake(std::vector<int>& queue) {
  for (int i : queue) fibers[i].waiting = false;
  queue.clear();
}
void barrier(int id, int count) {
  Barrier& b = barriers[id];
  if (++b.arrived < count) return wait_in(b.queue);
  b.arrived = 0;
  wake(b.queue);
}
void warp_exchange(const void* value, size_t bytes, void* all) {
  int index = fibers[current].index / 32;
  Warp& w = warps[index];
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
  const unsigned char *end = emu_dyn_smem + sizeof(emu_dyn_smem), *p = emu_dyn_smem + size;
  return p < end && (*p != GARBAGE || memcmp(p, p + 1, end - p - 1));
}

// Runs the threads of a block in the chosen order, each until it waits. False: nobody can go on.
static bool run_block(int order) {
  size_t n = fibers.size();
  while (live > 0) {
    bool progress = false;
    for (size_t k = 0; k < n; k++) {
      size_t i = order == 0 ? k : order == 1 ? n - 1 - k : (k * 7919 + (size_t)order) % n;
      if (fibers[i].done || fibers[i].waiting) continue;
      progress = true;
      current = (int)i;
      emu_tid = fibers[i].tid;
      swapcontext(&scheduler, &fibers[i].context);
    }
    if (!progress) return false;
  }
  return true;
}
static void start_block() {
  barriers.clear();
  warps.assign((fibers.size() + 31) / 32, Warp{});
  live = nthreads();
  memset(emu_dyn_smem, GARBAGE, sizeof(emu_dyn_smem));  // uninitialised shared memory is garbage
  for (int i = 0; i < nthreads(); i++) {
    Fiber& f = fibers[i];
    f.index = i;
    f.tid = {i % emu_bdim.x, i / emu_bdim.x % emu_bdim.y, i / emu_bdim.x / emu_bdim.y};
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
extern "C" int emu_launch(void** args, const unsigned* extent, size_t shared, int order) {
  using namespace emu;
  arguments = args;
  emu_gdim = {extent[0], extent[1], extent[2]};
  emu_bdim = {extent[3], extent[4], extent[5]};
  fibers.assign((size_t)emu_bdim.x * emu_bdim.y * emu_bdim.z, Fiber{});
  for (Fiber& f : fibers) f.stack = (char*)malloc(STACK);
  int failed = 0;
  for (unsigned z = 0; z < emu_gdim.z && !failed; z++)
    for (unsigned y = 0; y < emu_gdim.y && !failed; y++)
      for (unsigned x = 0; x < emu_gdim.x && !failed; x++) {
        emu_bid = {x, y, z};
        start_block();
        failed = !run_block(order) ? 1 : shared_memory_exceeded(shared) ? 2 : 0;
      }
  for (Fiber& f : fibers) free(f.stack);
  return failed;
}
