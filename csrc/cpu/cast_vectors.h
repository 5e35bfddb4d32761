// float16 casts in one pass by the vectors of an instruction set.

#ifndef GRADCOMP_CPU_CAST_VECTORS_H_
#define GRADCOMP_CPU_CAST_VECTORS_H_

#include <cstdint>

#include "cpu/elements.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes elements from the first on, and says how many: all but some of the last; or none without
// the instructions, or of another gradient than float32.
int64_t EncodeHalfsV4(const Source& source, int64_t n, Float16* wire);
int64_t EncodeHalfsV3(const Source& source, int64_t n, Float16* wire);

// Decodes and sums `world` payloads, `stride` bytes apart, and says as above how many elements.
// Clears `finite` if one of them isn't.
int64_t DecodeHalfsV4(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                      const Sink& sink, bool* finite);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_CAST_VECTORS_H_
