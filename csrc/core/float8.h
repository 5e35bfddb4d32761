// The two formats of eight bits (arXiv:2209.05433), by their bits.

#ifndef GRADCOMP_CORE_FLOAT8_H_
#define GRADCOMP_CORE_FLOAT8_H_

#include <cstdint>

#include "core/block_scale.h"
#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Four bits of exponent, three of mantissa; no infinity, one NaN of each sign.
struct E4M3 {
  static constexpr int kMantissaBits = 3;
  static constexpr int kMinExponent = -6;  // of normal numbers
  static constexpr float kMax = 448.0f;
  static constexpr uint32_t kFirstSpecial = 0x7f;  // the least magnitude that is not finite
  static constexpr uint32_t kFirstSpecialBits = kNanBits;
};

// The upper byte of a float16.
struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kMinExponent = -14;
  static constexpr float kMax = 57344.0f;
  static constexpr uint32_t kFirstSpecial = 0x7c;
  static constexpr uint32_t kFirstSpecialBits = kInfinityBits;
};

struct RoundedToFloat8 {
  uint32_t code;
  float value;  // that of the code, exactly
};

// Nearest, ties to even, of a y that rounds to at most Format::kMax in magnitude.
template <typename Format>
GRADCOMP_INLINE RoundedToFloat8 RoundToFloat8(float y) {
  constexpr int kShift = 23 - Format::kMantissaBits;
  constexpr int32_t kLeast = (127 + Format::kMinExponent) << 23;
  const uint32_t magnitude = FloatBits(y) & kMagnitudeMask;
  const uint32_t sign = FloatBits(y) & ~kMagnitudeMask;
  // The power of two at or below |y|; all subnormals share their last place with the least normal.
  const int32_t exponent = static_cast<int32_t>(magnitude & kInfinityBits);
  const uint32_t power = static_cast<uint32_t>(exponent < kLeast ? kLeast : exponent);
  // Added to a number whose last place is y's in the narrow format, y is rounded by the adder. What
  // is not mantissa of that number vanishes by the shift.
  const float unit = FloatFromBits(power + (static_cast<uint32_t>(kShift) << 23));
  const float sum = FloatFromBits(magnitude) + unit;
  const uint32_t code = (FloatBits(sum) << kShift) + (power - static_cast<uint32_t>(kLeast));
  // One shift at the end of 32-bit operations, or gcc narrows each operand by itself.
  return {(code | sign >> (31 - 7 - kShift)) >> kShift,
          FloatFromBits(FloatBits(sum - unit) | sign)};
}

// The exact value of a code that is finite.
template <typename Format>
GRADCOMP_INLINE float FloatFromFiniteFloat8(int8_t code) {
  constexpr int kShift = 23 - Format::kMantissaBits;
  // The difference of the exponents' biases; scaling by it normalises subnormals too.
  constexpr uint32_t kRebias = (127 + 127 - (1 - Format::kMinExponent)) << 23;
  // Extended, the sign is where it belongs, and in bits that are cleared.
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(code)) << kShift;
  return FloatFromBits(bits & (0x80000000 | 0x7f << kShift)) * FloatFromBits(kRebias);
}

// That of any code; a NaN has any sign.
template <typename Format>
GRADCOMP_INLINE float FloatFromFloat8(int8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const uint32_t special =
      magnitude == Format::kFirstSpecial ? Format::kFirstSpecialBits : kNanBits;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  return magnitude < Format::kFirstSpecial ? FloatFromFiniteFloat8<Format>(code)
                                           : FloatFromBits(special | sign);
}

// Coding of the elements of a block, one at a time; as QuantizeCoder.
template <typename Format>
struct Float8Coder {
  static constexpr int kBits = 8;
  static constexpr bool kStochastic = false;

  static GRADCOMP_INLINE BlockScale ScaleOf(uint32_t max_magnitude) {
    return ScaleToLargest(max_magnitude, Format::kMax);
  }
  static GRADCOMP_INLINE uint32_t Encode(BlockScale block, float, float* x) {
    const bool coded = block.inverse != 0;
    const RoundedToFloat8 rounded = RoundToFloat8<Format>(coded ? *x * block.inverse : 0.0f);
    *x = coded ? *x - rounded.value * block.scale : Canonical(*x - block.scale);
    return rounded.code & 0xff;
  }
  static GRADCOMP_INLINE float Decode(uint8_t byte, int, float scale) {
    return FloatFromFloat8<Format>(static_cast<int8_t>(byte)) * scale;
  }
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_FLOAT8_H_
