// float16 casts in one pass, where there are instructions for it.

#ifndef GRADCOMP_CPU_CAST_V4_H_
#define GRADCOMP_CPU_CAST_V4_H_

#include <cstdint>

#include "cpu/elements.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes elements from the first on, and says how many: all but some of the last, or none.
int64_t EncodeHalfs(const Source& source, int64_t n, Float16* wire);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_CAST_V4_H_
