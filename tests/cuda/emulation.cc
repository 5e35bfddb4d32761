#include "emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <vector>

#include "context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

// All __shared__ arrays, by their section; none where no kernel has any.
extern "C" __attribute__((weak)) char __start_emulated_shared[];
extern "C" __attribute__((weak)) char __stop_emulated_shared[];

namespace emulation {
namespace {

constexpr size_t kStackSize = 256 << 10;  // sanitizers make frames large
constexpr unsigned kMaxThreads = 1024;

enum class State { kRunnable, kWaiting, kExited };

struct Fiber {
  Context context;
  char* stack = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  State state = State::kExited;
  Operation operation = Operation::kSyncThreads;
  unsigned mask = 0;
  uint64_t value = 0;
  uint64_t brought[warpSize] = {};
};

Fiber fibers[kMaxThreads];
std::vector<unsigned> runnable;  // a heap where the order is fixed
bool order_is_fixed;
unsigned rank_of[kMaxThreads];  // the highest runs first
const std::function<void()>* body;
Context scheduler;
[[maybe_unused]] const void* scheduler_stack;
[[maybe_unused]] size_t scheduler_stack_size;
unsigned current;
unsigned waiting_threads;  // at the block's barrier
unsigned exited_threads;
uint64_t random_state;

unsigned Random(unsigned below) {  // splitmix64
  uint64_t z = random_state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return static_cast<unsigned>((z ^ z >> 31) % below);
}

void Shuffle(unsigned* begin, unsigned count) {
  for (unsigned left = count; left > 1; --left) std::swap(begin[Random(left)], begin[left - 1]);
}

// The order of a block's threads: drawn anew at every step, which keeps all of them close together,
// or, in half of the blocks, once: the first warp runs as far as it comes before the next, and so
// do the lanes of a warp. Warps are then as far apart as barriers let them be, as on hardware.
void DrawOrder() {
  order_is_fixed = Random(2) == 0;
  unsigned warps[kMaxThreads / warpSize], lanes[warpSize];
  std::iota(std::begin(warps), std::end(warps), 0u);
  std::iota(std::begin(lanes), std::end(lanes), 0u);
  Shuffle(warps, kMaxThreads / warpSize);
  Shuffle(lanes, warpSize);
  for (unsigned thread = 0; thread < kMaxThreads; ++thread) {
    rank_of[thread] = warps[thread / warpSize] * warpSize + lanes[thread % warpSize];
  }
}

bool IsAfter(unsigned thread, unsigned other) { return rank_of[thread] < rank_of[other]; }

void MakeRunnable(unsigned thread) {
  fibers[thread].state = State::kRunnable;
  runnable.push_back(thread);
  if (order_is_fixed) std::push_heap(runnable.begin(), runnable.end(), IsAfter);
}

unsigned TakeRunnable() {
  if (order_is_fixed) {
    std::pop_heap(runnable.begin(), runnable.end(), IsAfter);
  } else {
    std::swap(runnable[Random(static_cast<unsigned>(runnable.size()))], runnable.back());
  }
  const unsigned thread = runnable.back();
  runnable.pop_back();
  return thread;
}

void EnterFiber([[maybe_unused]] Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack, &scheduler_stack_size);
#endif
}

// Back to the scheduler; a fiber that has exited does not return.
void Leave(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fiber.state == State::kExited ? nullptr : &fiber.fake_stack,
                                 scheduler_stack, scheduler_stack_size);
#endif
  Switch(&fiber.context, &scheduler);
  EnterFiber(fiber);
}

void Main() {
  Fiber& fiber = fibers[current];
  EnterFiber(fiber);
  (*body)();
  fiber.state = State::kExited;
  ++exited_threads;
  Leave(fiber);
}

void Resume(unsigned thread) {
  current = thread;
  threadIdx = {thread, 0, 0};
  Fiber& fiber = fibers[thread];
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack, kStackSize);
#endif
  Switch(&scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Start(unsigned thread) {
  Fiber& fiber = fibers[thread];
  if (fiber.stack == nullptr) {
    fiber.stack = static_cast<char*>(mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (fiber.stack == MAP_FAILED) Fail("no memory for a thread's stack", 0);
  }
  Prepare(&fiber.context, fiber.stack, kStackSize, Main);
  fiber.fake_stack = nullptr;
  MakeRunnable(thread);
}

void ArriveAtBarrier() {
  if (++waiting_threads < blockDim.x) return;
  waiting_threads = 0;
  for (unsigned thread = 0; thread < blockDim.x; ++thread) MakeRunnable(thread);
}

// Lets the lanes of this thread's mask go on, if it is the last of them to come.
void ArriveInWarp() {
  const unsigned first = current / warpSize * warpSize;
  const Fiber& self = fibers[current];
  if ((self.mask >> (current - first) & 1) == 0) Fail("a lane calls with a mask without itself", 0);
  uint64_t brought[warpSize] = {};
  for (unsigned lane = 0; lane < warpSize; ++lane) {
    if ((self.mask >> lane & 1) == 0) continue;
    const unsigned thread = first + lane;
    const State state = thread < blockDim.x ? fibers[thread].state : State::kExited;
    if (state == State::kExited)
      Fail("a lane of the mask is inactive: it has returned", 1u << lane);
    if (state == State::kRunnable) return;
    const Fiber& other = fibers[thread];
    if (other.operation == Operation::kSyncThreads) return;  // comes later, or is reported as stuck
    if (other.operation != self.operation || other.mask != self.mask) {
      Fail("lanes of one mask are at different warp operations", 1u << lane);
    }
    brought[lane] = other.value;
  }
  for (unsigned lane = 0; lane < warpSize; ++lane) {
    if ((self.mask >> lane & 1) == 0) continue;
    std::memcpy(fibers[first + lane].brought, brought, sizeof(brought));
    MakeRunnable(first + lane);
  }
}

// Threads are left, and none of them can go on.
void ReportStuck() {
  const char* message = "threads wait for their warp for ever";
  if (waiting_threads > 0) {
    message = exited_threads > 0 ? "divergent barrier: some threads have returned, others wait"
                                 : "divergent barrier: not all threads come to it";
  }
  for (unsigned thread = 0; thread < blockDim.x; ++thread) {
    const Fiber& fiber = fibers[thread];
    if (fiber.state == State::kExited) continue;
    threadIdx.x = thread;
    if (fiber.operation == Operation::kSyncThreads) continue;
    unsigned returned = 0;
    for (unsigned lane = 0; lane < warpSize; ++lane) {
      const unsigned other = thread / warpSize * warpSize + lane;
      if (other >= blockDim.x || fibers[other].state == State::kExited) returned |= 1u << lane;
    }
    if ((returned & fiber.mask) == 0) continue;
    Fail("a lane of the mask is inactive: it has returned", returned & fiber.mask);
  }
  Fail(message, 0);
}

// AddressSanitizer guards arrays by bytes between them, which are filled, too.
__attribute__((no_sanitize_address)) void FillSharedWithGarbage() {
  volatile uint32_t* word = reinterpret_cast<uint32_t*>(__start_emulated_shared);
  for (; word < reinterpret_cast<uint32_t*>(__stop_emulated_shared); ++word) {
    *word = Random(0xffffffff) | 0x7fc00000;  // a NaN, and no small number
  }
}

// A GPU keeps subnormal numbers, which TensorFlow's threads flush to zero.
class GpuFloats {
 public:
  GpuFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~GpuFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

void RunBlock() {
  FillSharedWithGarbage();
  waiting_threads = 0;
  exited_threads = 0;
  DrawOrder();
  for (unsigned thread = 0; thread < blockDim.x; ++thread) Start(thread);
  while (!runnable.empty()) Resume(TakeRunnable());
  if (exited_threads != blockDim.x) ReportStuck();
}

}  // namespace

void SetSeed(uint64_t seed) { random_state = seed; }

void Fail(const char* message, unsigned lanes) {
  std::fprintf(stderr, "emulated CUDA: %s (block %u, thread %u", message, blockIdx.x, threadIdx.x);
  if (lanes != 0) std::fprintf(stderr, ", lanes 0x%08x", lanes);
  std::fprintf(stderr, ")\n");
  std::abort();
}

const uint64_t* Meet(Operation operation, unsigned mask, uint64_t value) {
  const unsigned thread = current;
  Fiber& fiber = fibers[thread];
  fiber.state = State::kWaiting;
  fiber.operation = operation;
  fiber.mask = mask;
  fiber.value = value;
  if (operation == Operation::kSyncThreads) {
    ArriveAtBarrier();
  } else {
    ArriveInWarp();
  }
  Leave(fiber);
  return fiber.brought;
}

void Run(dim3 grid, dim3 block, const std::function<void()>& thread) {
  static std::mutex one_grid;  // TensorFlow's threads call at once
  const std::lock_guard<std::mutex> lock(one_grid);
  const GpuFloats floats;
  if (grid.y * grid.z * block.y * block.z != 1) Fail("grids and blocks have one dimension", 0);
  if (block.x == 0 || block.x > kMaxThreads || grid.x == 0 || grid.x > 0x7fffffff) {
    Fail("a launch of no blocks, or of too many threads", 0);
  }
  body = &thread;
  blockDim = block;
  gridDim = grid;
  std::vector<unsigned> blocks(grid.x);
  std::iota(blocks.begin(), blocks.end(), 0u);
  Shuffle(blocks.data(), grid.x);
  for (const unsigned block_index : blocks) {
    blockIdx = {block_index, 0, 0};
    RunBlock();
  }
}

}  // namespace emulation
