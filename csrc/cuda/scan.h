// Sums over the threads of a warp or block, in integers.

#ifndef GRADCOMP_CUDA_SCAN_H_
#define GRADCOMP_CUDA_SCAN_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/macros.h"

namespace gradcomp::cuda {

constexpr unsigned kAllLanes = 0xffffffff;

__device__ __forceinline__ unsigned Lane() { return threadIdx.x % 32; }
__device__ __forceinline__ unsigned LanesBelow() { return (1u << Lane()) - 1; }

// Sum over this lane and those below. All lanes call it.
template <typename T>
__device__ __forceinline__ T WarpInclusiveSum(T value) {
  GRADCOMP_UNROLL(32)
  for (unsigned by = 1; by < 32; by *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, by);
    if (Lane() >= by) value += below;
  }
  return value;
}

template <typename T>
struct Sum {
  T before;  // over the threads below
  T total;   // over all threads
};

// All threads of the block call it; `warps` is shared memory, free again afterwards.
template <int kWarps, typename T>
__device__ __forceinline__ Sum<T> BlockSum(T value, T (&warps)[kWarps]) {
  const unsigned warp = threadIdx.x / 32;
  const T inclusive = WarpInclusiveSum(value);
  if (Lane() == 31) warps[warp] = inclusive;
  __syncthreads();
  Sum<T> sum = {inclusive - value, 0};
  GRADCOMP_UNROLL(32)
  for (unsigned other = 0; other < kWarps; ++other) {
    if (other < warp) sum.before += warps[other];
    sum.total += warps[other];
  }
  __syncthreads();
  return sum;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_SCAN_H_
