// Elements as casts send them: what x becomes, and what that stands for.

#ifndef GRADCOMP_CORE_CAST_H_
#define GRADCOMP_CORE_CAST_H_

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Encode() takes canonical values; Decode() is exact, and leaves a NaN any payload.
struct Float32Cast {
  using Wire = uint32_t;
  static GRADCOMP_INLINE Wire Encode(float x) { return FloatBits(x); }
  static GRADCOMP_INLINE float Decode(Wire wire) { return FloatFromBits(wire); }
};
struct Float16Cast {
  using Wire = uint16_t;
  static GRADCOMP_INLINE Wire Encode(float x) { return HalfFromFloat(SaturateToHalf(x)); }
  static GRADCOMP_INLINE float Decode(Wire wire) { return FloatFromHalf(wire); }
};
struct BFloat16Cast {
  using Wire = uint16_t;
  static GRADCOMP_INLINE Wire Encode(float x) { return SaturatingBFloat16FromFloat(x); }
  static GRADCOMP_INLINE float Decode(Wire wire) { return FloatFromBFloat16(wire); }
};

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_CAST_H_
