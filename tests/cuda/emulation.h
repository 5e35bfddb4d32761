// CUDA on the CPU, for tests: builds unchanged .cu files with g++ -x c++.
//
// A kernel runs block after block. Each thread of a block is a fiber, which runs until it waits at
// a barrier or for its warp; which fiber goes on is drawn at random (SetSeed): at every step, or
// once a block, so that one warp is ahead of all and one behind. So a barrier that is missing shows
// as wrong results, and AddressSanitizer sees every access. What real hardware would hang on or
// leave undefined aborts with a message: a lane that is named in a mask and does not come, a
// barrier that some threads have left by returning, warps at different operations. Shared memory
// holds garbage when a block starts. Not shown: memory ordering between blocks, and speed. Blocks
// and grids have one dimension.

#ifndef GRADCOMP_TESTS_CUDA_EMULATION_H_
#define GRADCOMP_TESTS_CUDA_EMULATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time; the section is how the start of a block finds all of it.
#define __shared__ static __attribute__((section("emulated_shared")))

struct uint2 {
  unsigned x, y;
} __attribute__((aligned(8)));
struct uint3 {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct float2 {
  float x, y;
} __attribute__((aligned(8)));
struct float4 {
  float x, y, z, w;
} __attribute__((aligned(16)));
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using std::max;
using std::min;

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;

namespace emulation {

// The order of blocks and threads in the launches that follow.
void SetSeed(uint64_t seed);
// Runs `thread` for every thread of every block.
void Run(dim3 grid, dim3 block, const std::function<void()>& thread);

enum class Operation : int { kSyncThreads, kSyncWarp, kShuffle, kVote };
// Waits for all threads of the block, or for the lanes of `mask`, to come to the same operation.
// Returns what the lanes of this warp have brought; lanes that are not in the mask brought garbage.
const uint64_t* Meet(Operation operation, unsigned mask, uint64_t value);
[[noreturn]] void Fail(const char* message, unsigned lanes);

inline int Lane() { return static_cast<int>(threadIdx.x % warpSize); }

template <typename T>
T Shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "as in CUDA");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const uint64_t* brought = Meet(Operation::kShuffle, mask, bits);
  if ((mask >> source & 1) == 0)
    Fail("a shuffle reads a lane that is not in its mask", 1u << source);
  std::memcpy(&value, &brought[source], sizeof(T));
  return value;
}

inline unsigned Ballot(unsigned mask, bool predicate) {
  const uint64_t* brought = Meet(Operation::kVote, mask, predicate);
  unsigned votes = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    if (mask >> lane & 1) votes |= static_cast<unsigned>(brought[lane] != 0) << lane;
  }
  return votes;
}

template <typename T, typename Combine>
T Atomic(T* address, Combine combine) {
  const T old = *address;
  *address = combine(old);
  return old;
}

}  // namespace emulation

inline void __syncthreads() { emulation::Meet(emulation::Operation::kSyncThreads, 0, 0); }
inline void __syncwarp(unsigned mask = 0xffffffff) {
  emulation::Meet(emulation::Operation::kSyncWarp, mask, 0);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return emulation::Ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return emulation::Ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return emulation::Ballot(mask, predicate != 0) == mask;
}
// Of the whole warp: no kernel here splits it by a width.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return emulation::Shuffle(mask, value, source % warpSize);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with) {
  return emulation::Shuffle(mask, value, emulation::Lane() ^ with);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const int source = emulation::Lane() + static_cast<int>(by);
  return emulation::Shuffle(mask, value, source < warpSize ? source : emulation::Lane());
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  const int source = emulation::Lane() - static_cast<int>(by);
  return emulation::Shuffle(mask, value, source >= 0 ? source : emulation::Lane());
}

template <typename T>
T atomicAdd(T* address, T value) {
  return emulation::Atomic(address, [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMax(T* address, T value) {
  return emulation::Atomic(address, [&](T old) { return std::max(old, value); });
}
template <typename T>
T atomicMin(T* address, T value) {
  return emulation::Atomic(address, [&](T old) { return std::min(old, value); });
}
template <typename T>
T atomicOr(T* address, T value) {
  return emulation::Atomic(address, [&](T old) { return old | value; });
}
template <typename T>
T atomicAnd(T* address, T value) {
  return emulation::Atomic(address, [&](T old) { return old & value; });
}
template <typename T>
T atomicExch(T* address, T value) {
  return emulation::Atomic(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return emulation::Atomic(address, [&](T old) { return old == expected ? value : old; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift % 32));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift % 32) >> 32);
}
template <typename T>
T __ldg(const T* address) {
  return *address;
}

template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
struct cudaLaunchAttribute;
namespace emulation {
// Where the last launch went, for tests.
inline int current_device = 0;
inline int last_device = 0;
inline cudaStream_t last_stream = nullptr;
inline int64_t launches = 0;
}  // namespace emulation
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;  // not emulated: kernels declare their shared memory's size
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t count, cudaStream_t) {
  std::memset(memory, value, count);
  return cudaSuccess;
}
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind,
                                   cudaStream_t stream) {
  emulation::last_stream = stream;
  std::memcpy(to, from, count);
  return cudaSuccess;
}
#define CUDART_CB
inline cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                         void (*callback)(cudaStream_t, cudaError_t, void*),
                                         void* data, unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  return error == cudaErrorInvalidValue ? "invalid argument" : "no such device";
}
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  emulation::last_stream = config->stream;
  emulation::last_device = emulation::current_device;
  ++emulation::launches;
  const std::tuple<std::remove_const_t<Params>...> params(std::forward<Args>(args)...);
  emulation::Run(config->gridDim, config->blockDim, [&] { std::apply(kernel, params); });
  return cudaSuccess;
}

#endif  // GRADCOMP_TESTS_CUDA_EMULATION_H_
