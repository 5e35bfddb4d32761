// float16 conversion of arrays, by the hardware's instruction where there is one.

#ifndef GRADCOMP_CPU_HALF_H_
#define GRADCOMP_CPU_HALF_H_

#include <cstdint>

#include "cpu/elements.h"

namespace gradcomp {

// half[i].bits = HalfFromFloat(x[i]) for 0 <= i < n; no overlap.
void HalfFromFloats(const float* x, int64_t n, Float16* half);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_HALF_H_
