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

template <typename Kernel, int kBits, bool kStochastic>
void EncodeBy(const Source& source, int64_t blocks, const RandomStream& stream,
              const BlocksOut& out) {
  const auto encode = source.new_residual ? Kernel::template Encode<kBits, kStochastic, true>
                                          : Kernel::template Encode<kBits, kStochastic, false>;
  encode(source, blocks, stream, out);
}

// EncodeBlocksV4 or V3 by its `Kernel`, whose Encode<bits, stochastic, with feedback> does blocks.
template <typename Kernel>
int64_t EncodeBlocksBy(const Codec& codec, const Source& source, int64_t count,
                       const RandomStream& stream, const BlocksOut& out) {
  const int64_t blocks = count / kTile;
  if (codec.block_size != kTile || source.dtype != DType::kFloat32) return 0;
  switch (codec.bits * 2 + codec.stochastic) {
    case 16:
      EncodeBy<Kernel, 8, false>(source, blocks, stream, out);
      break;
    case 17:
      EncodeBy<Kernel, 8, true>(source, blocks, stream, out);
      break;
    case 8:
      EncodeBy<Kernel, 4, false>(source, blocks, stream, out);
      break;
    case 9:
      EncodeBy<Kernel, 4, true>(source, blocks, stream, out);
      break;
    case 4:
      EncodeBy<Kernel, 2, false>(source, blocks, stream, out);
      break;
    case 5:
      EncodeBy<Kernel, 2, true>(source, blocks, stream, out);
      break;
    default:
      return 0;
  }
  return blocks * kTile;
}

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

// The scale and the codes of a block of one payload.
struct Block {
  const uint8_t* scale;
  const uint8_t* codes;
};

// DecodeBlocksV4 or V3 by its `Kernel`, whose Decode<bits, streamed> does blocks from the first on.
template <typename Kernel, int kBits>
DecodedBlocks DecodeBlocksBy(const BlocksIn& in, int64_t block_size, int64_t first, int64_t count,
                             const Sink& sink) {
  const int64_t blocks = count / kTile;
  if (block_size != kTile || first % kTile != 0 || sink.dtype != DType::kFloat32) return {0, true};
  const uint8_t* const scales = in.payloads + first / kTile * kScaleSize;
  const uint8_t* const codes = in.payloads + CeilDiv(in.n, kTile) * kScaleSize + first * kBits / 8;
  const auto decode = CanStream(sink) ? Kernel::template Decode<kBits, true>
                                      : Kernel::template Decode<kBits, false>;
  return {blocks * kTile, decode({scales, codes}, in, blocks, sink)};
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_QUANTIZE_BLOCKS_H_
