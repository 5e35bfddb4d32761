// The random bits of a tile, in shared memory.

#ifndef GRADCOMP_CUDA_DITHER_H_
#define GRADCOMP_CUDA_DITHER_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/macros.h"
#include "core/threefry.h"
#include "cuda/launch.h"

namespace gradcomp::cuda {

// bits[i] = those of element `first` + i of a tensor, for 0 <= i < count; all threads of the block
// call it, before a barrier. A counter serves eight elements, and is drawn once.
__device__ __forceinline__ void FillRandomBits(const RandomStream& stream, int64_t first, int count,
                                               uint16_t* bits) {
  const int64_t first_group = first / kRandomGroup;
  const int before = static_cast<int>(first % kRandomGroup);
  const int counters = (before + count + kRandomGroup - 1) / kRandomGroup * kRandomLanes;
  for (int i = threadIdx.x; i < counters; i += kThreads) {
    const int64_t group = first_group + i / kRandomLanes;
    const int lane = i % kRandomLanes;
    uint32_t random[4];
    DrawLane(stream, static_cast<uint64_t>(group) * kRandomLanes, lane, random);
    GRADCOMP_UNROLL(8)
    for (int slot = 0; slot < kRandomGroup / kRandomLanes; ++slot) {
      const int at = i / kRandomLanes * kRandomGroup + slot * kRandomLanes + lane - before;
      if (at >= 0 && at < count)
        bits[at] = static_cast<uint16_t>(random[slot / 2] >> slot % 2 * 16);
    }
  }
}

// Four of them, from bits[at] on.
__device__ __forceinline__ void ReadRandomBits(const uint16_t* bits, int at, uint32_t (&four)[4]) {
  if (at % 4 == 0) {
    const uint2 quad = *reinterpret_cast<const uint2*>(bits + at);
    four[0] = quad.x & 0xffff, four[1] = quad.x >> 16;
    four[2] = quad.y & 0xffff, four[3] = quad.y >> 16;
  } else {
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < 4; ++i) four[i] = bits[at + i];
  }
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_DITHER_H_
