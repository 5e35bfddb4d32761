// Elements of tensors and payloads, which may start at any byte.

#ifndef GRADCOMP_CPU_ELEMENTS_H_
#define GRADCOMP_CPU_ELEMENTS_H_

#include <cstdint>

#include "core/codec.h"
#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

struct [[gnu::packed, gnu::may_alias]] Float32 {
  float value;
};
struct [[gnu::packed, gnu::may_alias]] Float16 {
  uint16_t bits;
};
struct [[gnu::packed, gnu::may_alias]] BFloat16 {
  uint16_t bits;
};

// The exact float32 value.
GRADCOMP_INLINE float Widen(Float32 element) { return element.value; }
GRADCOMP_INLINE float Widen(Float16 element) { return FloatFromHalf(element.bits); }
GRADCOMP_INLINE float Widen(BFloat16 element) { return FloatFromBFloat16(element.bits); }

GRADCOMP_INLINE int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_ELEMENTS_H_
