// Payloads of one float32 scale a block and one float of eight bits an element.

#ifndef GRADCOMP_CPU_FLOAT8_H_
#define GRADCOMP_CPU_FLOAT8_H_

#include <cstdint>

#include "core/codec.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes elements [first, first + count) of a segment of n, `first` at the beginning of a block,
// into their places in the segment's payload. `source` is of these elements.
void Float8Encode(const Codec& codec, const Source& source, int64_t n, int64_t first, int64_t count,
                  uint8_t* payload);

// Decodes and sums elements [first, first + count) of a segment of n from its `world` payloads,
// `stride` bytes apart, into `sink`, which is of these elements; says whether all outputs are
// finite.
bool Float8Decode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                  int64_t n, int64_t first, int64_t count, const Sink& sink);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_FLOAT8_H_
