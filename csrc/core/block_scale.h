// The scale of a block whose largest magnitude becomes the largest code.

#ifndef GRADCOMP_CORE_BLOCK_SCALE_H_
#define GRADCOMP_CORE_BLOCK_SCALE_H_

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

constexpr float kSmallestScale = 0x1p-126f;

struct BlockScale {
  float scale;    // what a decoder multiplies codes by; NaN if the block is not finite
  float inverse;  // what elements are multiplied by; 0 if all codes are 0
};

// `max_magnitude` is the largest Magnitude() in the block.
GRADCOMP_INLINE BlockScale ScaleToLargest(uint32_t max_magnitude, float largest_code) {
  if (max_magnitude >= kInfinityBits) return {FloatFromBits(kNanBits), 0.0f};
  const float absmax = FloatFromBits(max_magnitude);
  float scale = absmax / largest_code;
  if (scale < kSmallestScale) return {0.0f, 0.0f};
  // Rounded up, the scale of a huge block would decode to infinity.
  if (Magnitude(largest_code * scale) == kInfinityBits) {
    scale = FloatFromBits(FloatBits(scale) - 1);
  }
  return {scale, largest_code / absmax};
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_BLOCK_SCALE_H_
