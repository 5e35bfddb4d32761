// Masks of dropout, which core/dropout.h defines, a bit an element as in core/bits.h.

#ifndef GRADCOMP_CPU_DROPOUT_H_
#define GRADCOMP_CPU_DROPOUT_H_

#include <cstdint>

#include "core/codec.h"
#include "core/dropout.h"

namespace gradcomp {

// Bits [0, n), PackedSize(n, 1) bytes.
void DrawMask(const MaskDraw& draw, int64_t n, uint8_t* packed);

// y[i] = x[i] * scale where bit i is set, else 0; products rounded to the dtype. `y` may be `x`.
void ApplyMask(DType dtype, const void* x, const uint8_t* packed, int64_t n, float scale, void* y);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_DROPOUT_H_
