// Block quantisation of one element.

#ifndef GRADCOMP_CORE_QUANTIZE_H_
#define GRADCOMP_CORE_QUANTIZE_H_

#include <cstdint>

#include "core/block_scale.h"
#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Codes are -qmax..qmax.
GRADCOMP_INLINE constexpr int QuantizeMax(int bits) { return (1 << (bits - 1)) - 1; }

// `max_magnitude` is the largest Magnitude() in the block.
GRADCOMP_INLINE BlockScale ScaleOfBlock(uint32_t max_magnitude, int bits) {
  return ScaleToLargest(max_magnitude, static_cast<float>(QuantizeMax(bits)));
}

// The code of a finite element; `dither` is 8 + u where rounding is stochastic.
//
// |y| exceeds qmax by some 2^-22 of it at most. So codes in range need no clamping but where eight
// bits are rounded at random: elsewhere u and the nearest integer keep away from the next code.
template <int kBits, bool kStochastic>
GRADCOMP_INLINE int32_t QuantizeCode(float x, float inverse, float dither) {
  const float y = x * inverse;
  if constexpr (!kStochastic) {
    // The sum has no bits left for a fraction: the adder rounds to nearest, ties to even.
    constexpr float kMagic = 0x1.8p23f;
    return static_cast<int32_t>(FloatBits(y + kMagic) - FloatBits(kMagic));
  } else if constexpr (kBits < 8) {
    return static_cast<int32_t>(y + dither) - 8;  // the sum is positive
  } else {
    // The sum is a multiple of 2^-22, so that shifting its fraction out is the floor, also below 0.
    const int32_t code = (static_cast<int32_t>((y + dither) * 0x1p22f) >> 22) - 8;
    constexpr int32_t kMax = QuantizeMax(kBits);
    const int32_t low = code < -kMax ? -kMax : code;
    return low > kMax ? kMax : low;
  }
}

// The code in bits [shift, shift + kBits) of a byte, two's complement.
template <int kBits>
GRADCOMP_INLINE int32_t CodeFromByte(uint8_t byte, int shift) {
  return static_cast<int32_t>(static_cast<uint32_t>(byte) << (32 - kBits - shift)) >> (32 - kBits);
}

// Quantisation of the elements of a block, one at a time.
template <int kBitsOfCode, bool kAtRandom>
struct QuantizeCoder {
  static constexpr int kBits = kBitsOfCode;
  static constexpr bool kStochastic = kAtRandom;

  static GRADCOMP_INLINE BlockScale ScaleOf(uint32_t max_magnitude) {
    return ScaleOfBlock(max_magnitude, kBits);
  }
  // The code in the lowest bits; x becomes what it loses.
  static GRADCOMP_INLINE uint32_t Encode(BlockScale block, float dither, float* x) {
    const bool finite = block.scale == block.scale;
    const int32_t code =
        QuantizeCode<kBits, kStochastic>(finite ? *x : 0.0f, block.inverse, dither);
    *x = finite ? *x - static_cast<float>(code) * block.scale : block.scale;
    return static_cast<uint32_t>(code) & ((1u << kBits) - 1);
  }
  // Of the code in bits [shift, shift + kBits) of a byte.
  static GRADCOMP_INLINE float Decode(uint8_t byte, int shift, float scale) {
    return static_cast<float>(CodeFromByte<kBits>(byte, shift)) * scale;
  }
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_QUANTIZE_H_
