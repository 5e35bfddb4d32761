// The scale of a block of signs: its mean magnitude, summed in an order that processors of any
// vector length, and warps, reproduce.

#ifndef GRADCOMP_CORE_SIGN_H_
#define GRADCOMP_CORE_SIGN_H_

#include <cstdint>

#include "core/block_scale.h"
#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Lane l sums, in order, the elements of a block whose index is l modulo 32: a warp's threads.
constexpr int kSignLanes = 32;
// What magnitudes are multiplied by where their sum would overflow: blocks are shorter than 2^64.
constexpr float kSignSmallUnit = 0x1p-64f;

// Adds |x| in units of 1 / `unit`, a power of two, to a lane.
GRADCOMP_INLINE float AddMagnitude(float lane, float x, float unit) {
  return lane + FloatFromBits(Magnitude(x)) * unit;
}

// The sum of all lanes, by a tree that adds the upper half to the lower: a warp's shuffles.
// Clobbers lanes.
GRADCOMP_INLINE float SumOfLanes(float (&lanes)[kSignLanes]) {
  GRADCOMP_UNROLL(5)
  for (int half = kSignLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The scale of a block of `size` elements, of its finite sum; 0 if all bits are 0.
GRADCOMP_INLINE float SignScale(float sum, int64_t size) {
  const float mean = sum / static_cast<float>(size);
  return mean < kSmallestScale ? 0.0f : mean;
}

// That of a finite block whose sum overflows, but not in units of 1 / kSignSmallUnit;
// `max_magnitude` is the largest Magnitude() in the block.
GRADCOMP_INLINE float HugeSignScale(float sum, int64_t size, uint32_t max_magnitude) {
  const float mean = sum / static_cast<float>(size) * (1 / kSignSmallUnit);
  // Rounding must not lift the mean above all elements, which may be to infinity.
  const float absmax = FloatFromBits(max_magnitude);
  return mean < absmax ? mean : absmax;
}

// Coding of the elements of a block, one at a time; as QuantizeCoder, but for where the scale comes
// from.
struct SignCoder {
  static constexpr int kBits = 1;
  static constexpr bool kStochastic = false;

  static GRADCOMP_INLINE BlockScale ScaleOf(uint32_t scale_bits) {
    return {FloatFromBits(scale_bits), 0.0f};
  }
  static GRADCOMP_INLINE uint32_t Encode(BlockScale block, float, float* x) {
    const bool coded = block.scale > 0;
    const uint32_t sign = coded ? FloatBits(*x) & ~kMagnitudeMask : 0;
    *x = Canonical(*x - FloatFromBits(FloatBits(block.scale) | sign));
    return sign >> 31;
  }
  static GRADCOMP_INLINE float Decode(uint8_t byte, int shift, float scale) {
    return FloatFromBits(FloatBits(scale) ^ static_cast<uint32_t>(byte >> shift & 1) << 31);
  }
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_SIGN_H_
