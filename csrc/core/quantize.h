// Block quantisation of one element, and of a block's scale.

#ifndef GRADCOMP_CORE_QUANTIZE_H_
#define GRADCOMP_CORE_QUANTIZE_H_

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Codes are -qmax..qmax.
GRADCOMP_INLINE constexpr int QuantizeMax(int bits) { return (1 << (bits - 1)) - 1; }

struct BlockScale {
  float scale;    // what a decoder multiplies codes by; NaN if the block is not finite
  float inverse;  // what elements are multiplied by; 0 if all codes are 0
};

// `max_magnitude` is the largest Magnitude() in the block.
GRADCOMP_INLINE BlockScale ScaleOfBlock(uint32_t max_magnitude, int bits) {
  if (max_magnitude >= kInfinityBits) return {FloatFromBits(kNanBits), 0.0f};
  const float qmax = static_cast<float>(QuantizeMax(bits));
  const float absmax = FloatFromBits(max_magnitude);
  float scale = absmax / qmax;
  if (scale < 0x1p-126f) return {0.0f, 0.0f};
  // Rounded up, the scale of a huge block would decode to infinity.
  if (Magnitude(qmax * scale) == kInfinityBits) scale = FloatFromBits(FloatBits(scale) - 1);
  return {scale, qmax / absmax};
}

// The code of a finite element; `dither` is 8 + u where rounding is stochastic.
template <int kBits, bool kStochastic>
GRADCOMP_INLINE int32_t QuantizeCode(float x, float inverse, float dither) {
  const float y = x * inverse;
  int32_t code;
  if constexpr (kStochastic) {
    const float sum = y + dither;
    code = static_cast<int32_t>(sum) - 8;
    // Eight bits reach below zero, where truncation is not the floor.
    if constexpr (kBits == 8) code -= static_cast<float>(code + 8) > sum;
  } else {
    // The sum has no bits left for a fraction: the adder rounds to nearest, ties to even.
    constexpr float kMagic = 0x1.8p23f;
    code = static_cast<int32_t>(FloatBits(y + kMagic) - FloatBits(kMagic));
  }
  // Clamped as an integer: compilers make poor vector code of floating-point minima.
  constexpr int32_t kMax = QuantizeMax(kBits);
  code = code < -kMax ? -kMax : code;
  return code > kMax ? kMax : code;
}

// The code in bits [shift, shift + kBits) of a byte, two's complement.
template <int kBits>
GRADCOMP_INLINE int32_t CodeFromByte(uint8_t byte, int shift) {
  return static_cast<int32_t>(static_cast<uint32_t>(byte) << (32 - kBits - shift)) >> (32 - kBits);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_QUANTIZE_H_
