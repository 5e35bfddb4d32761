// Kernels that are wrong, to show that the emulation notices.

#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 64;
constexpr unsigned kWholeWarp = 0xffffffff;

__global__ void reverse_kernel(int* out, bool with_barrier) {
  __shared__ int threads[kThreads];
  threads[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = threads[kThreads - 1 - threadIdx.x];
}

// Sums over all threads, two of them through the same array: warps may be one sum apart.
__global__ void sum_twice_kernel(int* out, bool with_barrier) {
  __shared__ int warps[kThreads / 32];
  int total = 0;
  for (int i = 0; i < 2; ++i) {
    int sum = static_cast<int>(threadIdx.x) * (i + 1);
    for (int with = 16; with > 0; with /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, with);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    total += warps[0] + warps[1];
    if (with_barrier) __syncthreads();
  }
  out[threadIdx.x] = total;
}

__global__ void return_before_barrier_kernel() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

__global__ void barrier_in_branch_kernel() {
  if (threadIdx.x % 32 < 16) __syncthreads();
  __syncwarp();
}

__global__ void return_before_shuffle_kernel(int* out) {
  if (threadIdx.x == 7) return;
  out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, 1, 1);
}

__global__ void different_operations_kernel(int* out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = __shfl_sync(kWholeWarp, 1, 0);
  } else {
    out[threadIdx.x] = __any_sync(kWholeWarp, 1);
  }
}

__global__ void shuffle_from_outside_kernel(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

__global__ void mask_without_itself_kernel() { __syncwarp(0x0000fffe); }

__global__ void past_the_end_kernel(int* out) {
  __shared__ int last[3];
  last[threadIdx.x % 4] = 1;
  __syncthreads();
  out[threadIdx.x] = last[0];
}

template <typename... Params, typename... Args>
int Launch(void (*kernel)(Params...), const Args&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kThreads);
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace

// `out` has an int for each of 64 threads.
extern "C" __attribute__((visibility("default"))) int emulated_fault(int fault, int* out) {
  switch (fault) {
    case 0:
      return Launch(reverse_kernel, out, true);
    case 1:
      return Launch(reverse_kernel, out, false);
    case 2:
      return Launch(return_before_barrier_kernel);
    case 3:
      return Launch(barrier_in_branch_kernel);
    case 4:
      return Launch(return_before_shuffle_kernel, out);
    case 5:
      return Launch(different_operations_kernel, out);
    case 6:
      return Launch(shuffle_from_outside_kernel, out);
    case 7:
      return Launch(mask_without_itself_kernel);
    case 8:
      return Launch(past_the_end_kernel, out);
    case 9:
      return Launch(sum_twice_kernel, out, true);
    case 10:
      return Launch(sum_twice_kernel, out, false);
  }
  return -1;
}
