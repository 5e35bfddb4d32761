// float16 conversion of arrays, by the hardware's instruction where there is one.

#ifndef GRADCOMP_CPU_HALF_H_
#define GRADCOMP_CPU_HALF_H_

#include <cstdint>

#include "cpu/elements.h"

namespace gradcomp {

// half[i].bits = HalfFromFloat(x[i]) for 0 <= i < n; no overlap.
void HalfFromFloats(const float* x, int64_t n, Float16* half);

// x[i] = FloatFromHalf(half[i].bits), likewise.
void FloatsFromHalf(const Float16* half, int64_t n, float* x);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_HALF_H_
