// float32, float16 and bfloat16 by their bits. No operation here depends on hardware conversions,
// so all of it gives equal bits everywhere and vectorises on plain SSE2.

#ifndef GRADCOMP_CORE_FLOAT_BITS_H_
#define GRADCOMP_CORE_FLOAT_BITS_H_

#include <cstdint>
#include <cstring>

#include "core/macros.h"

namespace gradcomp {

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;
constexpr uint32_t kMagnitudeMask = 0x7fffffff;
constexpr uint16_t kHalfInfinityBits = 0x7c00;
constexpr uint16_t kBFloat16InfinityBits = 0x7f80;
constexpr float kHalfMax = 65504.0f;

GRADCOMP_INLINE uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

GRADCOMP_INLINE float FloatFromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// |x| as an integer: ordered as |x|, with infinity and then NaN on top.
GRADCOMP_INLINE uint32_t Magnitude(float x) { return FloatBits(x) & kMagnitudeMask; }

// The payload of a NaN depends on the order of operands; one NaN for all.
GRADCOMP_INLINE float Canonical(float x) { return x == x ? x : FloatFromBits(kNanBits); }

GRADCOMP_INLINE float FloatFromHalf(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff;
  // Scaling by the difference of the exponents' biases normalises subnormals too.
  const uint32_t finite = FloatBits(FloatFromBits(magnitude << 13) * 0x1p112f);
  const uint32_t special = magnitude == kHalfInfinityBits ? kInfinityBits : kNanBits;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t bits = magnitude < kHalfInfinityBits ? finite : special;
  return FloatFromBits(magnitude > kHalfInfinityBits ? bits : bits | sign);
}

// Nearest, ties to even, overflow to infinity; any NaN becomes 0x7e00.
GRADCOMP_INLINE uint16_t HalfFromFloat(float x) {
  const uint32_t bits = FloatBits(x);
  const uint32_t magnitude = bits & kMagnitudeMask;
  // Added to 0.5, whose last place is the smallest half, a subnormal half is rounded by the adder.
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + 0.5f) - FloatBits(0.5f);
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  uint32_t half = magnitude < FloatBits(0x1p-14f) ? subnormal : normal;
  half = magnitude >= FloatBits(65520.0f) ? kHalfInfinityBits : half;
  half |= (bits >> 16) & 0x8000;
  return static_cast<uint16_t>(magnitude > kInfinityBits ? 0x7e00 : half);
}

// Finite values beyond the largest half become it; infinities and NaN pass.
GRADCOMP_INLINE float SaturateToHalf(float x) {
  const float low = x < -kHalfMax ? -kHalfMax : x;
  const float clamped = low > kHalfMax ? kHalfMax : low;
  return Magnitude(x) < kInfinityBits ? clamped : x;
}

GRADCOMP_INLINE float FloatFromBFloat16(uint16_t bfloat16) {
  return Canonical(FloatFromBits(static_cast<uint32_t>(bfloat16) << 16));
}

// Nearest, ties to even, overflow to infinity; any NaN becomes 0x7fc0.
GRADCOMP_INLINE uint16_t BFloat16FromFloat(float x) {
  const uint32_t bits = FloatBits(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & kMagnitudeMask) > kInfinityBits ? 0x7fc0 : rounded);
}

// Likewise, but finite values stay finite.
GRADCOMP_INLINE uint16_t SaturatingBFloat16FromFloat(float x) {
  const uint16_t rounded = BFloat16FromFloat(x);
  const bool overflowed =
      (rounded & 0x7fff) == kBFloat16InfinityBits && Magnitude(x) < kInfinityBits;
  return static_cast<uint16_t>(overflowed ? rounded - 1 : rounded);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_FLOAT_BITS_H_
