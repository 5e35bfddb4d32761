// One step of a radix select: which bin of a histogram holds the element of a rank.

#ifndef GRADCOMP_CUDA_RADIX_H_
#define GRADCOMP_CUDA_RADIX_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/macros.h"
#include "cuda/scan.h"

namespace gradcomp::cuda {

struct Bin {
  uint32_t index;
  uint32_t larger;  // elements in the bins above it
};

// The bin of the rank-th largest of at least `rank` elements, rank > 0. All threads of the block
// call it, after a barrier if the histogram is in shared memory, which is free again afterwards.
template <uint32_t kBins, int kBlock>
__device__ __forceinline__ Bin FindBin(const uint32_t* histogram, uint32_t rank) {
  static_assert(kBins % kBlock == 0, "a thread looks at as many bins as any other");
  constexpr uint32_t kOwn = kBins / kBlock;
  __shared__ uint32_t warps[kBlock / 32];
  __shared__ Bin found;
  // The first thread has the highest bins.
  const uint32_t highest = kBins - 1 - threadIdx.x * kOwn;
  uint32_t counts[kOwn];
  uint32_t own = 0;
  GRADCOMP_UNROLL(32)
  for (uint32_t i = 0; i < kOwn; ++i) own += counts[i] = histogram[highest - i];
  uint32_t larger = BlockSum(own, warps).before;
  // One thread has it: larger < rank <= larger + own. It is in the last bin that has too few above.
  if (rank - 1 - larger < own) {
    GRADCOMP_UNROLL(32)
    for (uint32_t i = 0; i < kOwn; ++i) {
      if (larger < rank) found = {highest - i, larger};
      larger += counts[i];
    }
  }
  __syncthreads();
  return found;
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_RADIX_H_
