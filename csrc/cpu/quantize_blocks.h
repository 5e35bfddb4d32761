// Blocks of kTile elements by the vectors of an instruction set: where memory is fast, writing and
// reading a tile several times takes longer than it does.

#ifndef GRADCOMP_CPU_QUANTIZE_BLOCKS_H_
#define GRADCOMP_CPU_QUANTIZE_BLOCKS_H_

#include <cstdint>

#include "core/codec.h"
#include "core/threefry.h"
#include "cpu/tile.h"

namespace gradcomp {

constexpr int64_t kScaleSize = sizeof(float);

// Where blocks go: the scale and the codes of the first, which starts at `element` of its tensor.
struct BlocksOut {
  uint8_t* scales;
  uint8_t* codes;
  int64_t element;
};

// Encodes the first of `count` elements, as QuantizeEncode, and says how many: all whole blocks; or
// none without the instructions, or for other blocks or another gradient than float32.
int64_t EncodeBlocksV4(const Codec& codec, const Source& source, int64_t count,
                       const RandomStream& stream, const BlocksOut& out);
int64_t EncodeBlocksV3(const Codec& codec, const Source& source, int64_t count,
                       const RandomStream& stream, const BlocksOut& out);

// `world` payloads of n elements, `stride` bytes apart.
struct BlocksIn {
  const uint8_t* payloads;
  int64_t stride;
  int64_t world;
  int64_t n;
};

// How many elements were decoded, and whether all sums are finite.
struct DecodedBlocks {
  int64_t elements;
  bool finite;
};

// Decodes and sums the first of elements [first, first + count), as QuantizeDecode: all whole
// blocks, or none, as above.
template <int kBits>
DecodedBlocks DecodeBlocksV4(const BlocksIn& in, int64_t block_size, int64_t first, int64_t count,
                             const Sink& sink);
template <int kBits>
DecodedBlocks DecodeBlocksV3(const BlocksIn& in, int64_t block_size, int64_t first, int64_t count,
                             const Sink& sink);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_QUANTIZE_BLOCKS_H_
