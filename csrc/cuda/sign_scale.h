// The scale of a block of signs by a warp: each thread is a lane of core/sign.h.

#ifndef GRADCOMP_CUDA_SIGN_SCALE_H_
#define GRADCOMP_CUDA_SIGN_SCALE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/macros.h"
#include "core/sign.h"

namespace gradcomp::cuda {

constexpr unsigned kWholeWarp = 0xffffffff;

// The sum of |element(at)| in units of 1 / `unit`, for 0 <= at < size, to all lanes.
template <typename Element>
__device__ __forceinline__ float SumInWarp(int64_t size, int lane, float unit,
                                           const Element& element) {
  // Loads of several elements are under way together; the additions follow in order.
  constexpr int kAhead = 8;
  float sum = 0.0f;
  for (int64_t at = lane; at < size; at += kAhead * kSignLanes) {
    float x[kAhead];
    GRADCOMP_UNROLL(8)
    for (int i = 0; i < kAhead; ++i) {
      x[i] = at + i * kSignLanes < size ? element(at + i * kSignLanes) : 0.0f;
    }
    GRADCOMP_UNROLL(8)
    for (int i = 0; i < kAhead; ++i) sum = AddMagnitude(sum, x[i], unit);
  }
  for (int half = kSignLanes / 2; half > 0; half /= 2) {
    sum += __shfl_down_sync(kWholeWarp, sum, half);
  }
  return __shfl_sync(kWholeWarp, sum, 0);
}

template <typename Element>
__device__ __forceinline__ uint32_t LargestInWarp(int64_t size, int lane, const Element& element) {
  uint32_t largest = 0;
  for (int64_t at = lane; at < size; at += kSignLanes) {
    largest = max(largest, Magnitude(element(at)));
  }
  for (int with = 1; with < kSignLanes; with *= 2) {
    largest = max(largest, __shfl_xor_sync(kWholeWarp, largest, with));
  }
  return largest;
}

// The scale of element(0) … element(size - 1); equal in all lanes.
template <typename Element>
__device__ __forceinline__ float SignScaleInWarp(int64_t size, int lane, const Element& element) {
  const float sum = SumInWarp(size, lane, 1.0f, element);
  if (Magnitude(sum) < kInfinityBits) return SignScale(sum, size);
  const uint32_t largest = LargestInWarp(size, lane, element);
  if (largest >= kInfinityBits) return FloatFromBits(kNanBits);
  return HugeSignScale(SumInWarp(size, lane, kSignSmallUnit, element), size, largest);
}

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_SIGN_SCALE_H_
