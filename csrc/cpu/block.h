// The block codecs, whose payload of n elements takes and gives any run of them that starts at a
// block: casts and those with scales, for tensors and for the values that top-k keeps.

#ifndef GRADCOMP_CPU_BLOCK_H_
#define GRADCOMP_CPU_BLOCK_H_

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cpu/cast.h"
#include "cpu/float8.h"
#include "cpu/quantize.h"
#include "cpu/sign.h"
#include "cpu/tile.h"

namespace gradcomp {

// Encodes elements [first, first + count) of n, as QuantizeEncode.
inline void BlockEncode(const Codec& codec, const Source& source, int64_t n, int64_t first,
                        int64_t count, int64_t start, const RandomStream& stream,
                        uint8_t* payload) {
  switch (codec.family) {
    case Family::kQuantize:
      return QuantizeEncode(codec, source, n, first, count, start, stream, payload);
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
      return Float8Encode(codec, source, n, first, count, payload);
    case Family::kSign:
      return SignEncode(codec, source, n, first, count, payload);
    default:
      return CastEncode(codec.family, source, count, payload + PayloadSize(codec, first, 0));
  }
}

// Decodes and sums elements [first, first + count) of n, as QuantizeDecode.
inline bool BlockDecode(const Codec& codec, const uint8_t* payloads, int64_t stride, int64_t world,
                        int64_t n, int64_t first, int64_t count, const Sink& sink) {
  switch (codec.family) {
    case Family::kQuantize:
      return QuantizeDecode(codec, payloads, stride, world, n, first, count, sink);
    case Family::kFloat8E4M3:
    case Family::kFloat8E5M2:
      return Float8Decode(codec, payloads, stride, world, n, first, count, sink);
    case Family::kSign:
      return SignDecode(codec, payloads, stride, world, n, first, count, sink);
    default:
      return CastDecode(codec.family, payloads + PayloadSize(codec, first, 0), stride, world, count,
                        sink);
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_BLOCK_H_
