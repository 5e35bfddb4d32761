// Payloads that are the elements themselves, as float32, float16 or bfloat16.

#ifndef GRADCOMP_CPU_CAST_H_
#define GRADCOMP_CPU_CAST_H_

#include <cstdint>

#include "core/codec.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes n elements to `payload`. `family` is float32, float16 or bfloat16.
void CastEncode(Family family, const Source& source, int64_t n, uint8_t* payload);

// Decodes and sums n elements of `world` payloads, `stride` bytes apart; says whether all outputs
// are finite.
bool CastDecode(Family family, const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                const Sink& sink);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_CAST_H_
