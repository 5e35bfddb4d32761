#include "cpu/quantize.h"

#include <algorithm>
#include <cstring>

#include "core/float_bits.h"
#include "core/quantize.h"
#include "cpu/quantize_blocks.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

// The dither of the elements last asked for, in whole groups: blocks smaller than a group share it.
class Dither {
 public:
  explicit GRADCOMP_INLINE Dither(const RandomStream& stream) : stream_(stream) {}

  // That of elements [first, first + n), n <= kTile, `first` a multiple of 32.
  GRADCOMP_INLINE const float* Get(int64_t first, int64_t n) {
    if (first < begin_ || first + n > end_) {
      begin_ = first / kRandomGroup * kRandomGroup;
      for (end_ = begin_; end_ < first + n; end_ += kRandomGroup) {
        FillDither(stream_, end_ / kRandomGroup, dither_ + (end_ - begin_));
      }
    }
    return dither_ + (first - begin_);
  }

 private:
  RandomStream stream_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  alignas(kCacheLine) float dither_[kTile + kRandomGroup];
};

// The code of element i, and what it loses.
template <int kBits, bool kStochastic, bool kResidual>
GRADCOMP_INLINE int32_t CodeOf(const float* __restrict x, const float* __restrict dither, int64_t i,
                               BlockScale block, Float32* __restrict new_residual) {
  const int32_t code =
      QuantizeCode<kBits, kStochastic>(x[i], block.inverse, kStochastic ? dither[i] : 0.0f);
  if constexpr (kResidual) new_residual[i].value = x[i] - static_cast<float>(code) * block.scale;
  return code;
}

template <int kBits, bool kStochastic, bool kResidual>
struct CodesOfTile {
  GRADCOMP_INLINE void operator()(const float* __restrict x, const float* __restrict dither,
                                  int64_t n, BlockScale block, uint8_t* __restrict codes,
                                  Float32* __restrict new_residual) const {
    for (int64_t i = 0; i < n; ++i) {
      codes[i] = static_cast<uint8_t>(
          CodeOf<kBits, kStochastic, kResidual>(x, dither, i, block, new_residual));
    }
  }
};

// The bytes of a block of one tile, all planes of it at once.
template <int kBits, bool kStochastic, bool kResidual>
struct BytesOfTile {
  GRADCOMP_INLINE void operator()(const float* __restrict x, const float* __restrict dither,
                                  int64_t, BlockScale block, uint8_t* __restrict bytes,
                                  Float32* __restrict new_residual) const {
    constexpr int kPlanes = 8 / kBits;
    constexpr int64_t kBytes = kTile / kPlanes;
    for (int64_t j = 0; j < kBytes; ++j) {
      uint32_t byte = 0;
      GRADCOMP_UNROLL(4)
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int32_t code = CodeOf<kBits, kStochastic, kResidual>(x, dither, plane * kBytes + j,
                                                                   block, new_residual);
        byte |= (static_cast<uint32_t>(code) & ((1u << kBits) - 1)) << (plane * kBits);
      }
      bytes[j] = static_cast<uint8_t>(byte);
    }
  }
};

// Byte j of a block of `size` bytes has in bits [p * kBits, (p + 1) * kBits), its plane p, the code
// of element p * size + j. Calls visit(plane, byte, element, count) for each run of elements of
// one plane in [first, first + n) of the block; `element` counts from `first`.
template <int kBits, typename Visitor>
GRADCOMP_INLINE void VisitPlanes(int64_t size, int64_t first, int64_t n, Visitor visit) {
  for (int plane = 0; plane < 8 / kBits; ++plane) {
    const int64_t begin = std::max(first, plane * size);
    const int64_t end = std::min(first + n, (plane + 1) * size);
    if (begin < end) visit(plane, begin - plane * size, begin - first, end - begin);
  }
}

template <int kBits>
struct Packer {
  const uint8_t* codes;
  uint8_t* bytes;

  GRADCOMP_INLINE void operator()(int plane, int64_t byte, int64_t element, int64_t count) const {
    constexpr uint8_t kMask = (1 << kBits) - 1;
    const uint8_t* __restrict from = codes + element;
    uint8_t* __restrict to = bytes + byte;
    // Plane 0 covers every byte of the block and comes first, so nothing needs clearing.
    if (plane == 0) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] & kMask;
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] |= static_cast<uint8_t>((from[i] & kMask) << (plane * kBits));
      }
    }
  }
};

template <int kBits>
struct Unpacker {
  const uint8_t* bytes;
  float scale;
  bool add;
  float* sum;

  GRADCOMP_INLINE void operator()(int plane, int64_t byte, int64_t element, int64_t count) const {
    const uint8_t* __restrict from = bytes + byte;
    float* __restrict to = sum + element;
    const int shift = plane * kBits;
    if (add) {
      for (int64_t i = 0; i < count; ++i) {
        to[i] += static_cast<float>(CodeFromByte<kBits>(from[i], shift)) * scale;
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<float>(CodeFromByte<kBits>(from[i], shift)) * scale;
      }
    }
  }
};

// Part of a block: `count` elements from `first`, in x, of a block of `size` with bytes `codes`.
struct Part {
  int64_t size;
  int64_t first;
  int64_t count;
  BlockScale scale;
  uint8_t* codes;
};

// Has what is written of a part, `Write`, done on `size` bytes of codes; zeros and NaN if the scale
// is NaN.
template <template <int, bool, bool> class Write, int kBits, bool kStochastic>
GRADCOMP_INLINE void WriteCodes(const Part& part, const float* x, const float* dither,
                                uint8_t* codes, int64_t size, Float32* new_residual) {
  const float scale = part.scale.scale;
  if (scale != scale) {
    std::fill_n(codes, size, uint8_t{0});
    for (int64_t i = 0; new_residual && i < part.count; ++i) new_residual[i].value = scale;
  } else if (new_residual) {
    Write<kBits, kStochastic, true>()(x, dither, part.count, part.scale, codes, new_residual);
  } else {
    Write<kBits, kStochastic, false>()(x, dither, part.count, part.scale, codes, nullptr);
  }
}

template <int kBits, bool kStochastic>
GRADCOMP_INLINE void EncodePart(const Part& part, const float* x, const float* dither,
                                Float32* new_residual) {
  if (part.size == kTile && part.count == kTile) {
    return WriteCodes<BytesOfTile, kBits, kStochastic>(part, x, dither, part.codes,
                                                       kTile * kBits / 8, new_residual);
  }
  uint8_t codes[kTile];
  WriteCodes<CodesOfTile, kBits, kStochastic>(part, x, dither, codes, part.count, new_residual);
  VisitPlanes<kBits>(CeilDiv(part.size * kBits, 8), part.first, part.count,
                     Packer<kBits>{codes, part.codes});
}

GRADCOMP_INLINE void EncodePart(const Codec& codec, const Part& part, const float* x,
                                const float* dither, Float32* new_residual) {
  switch (codec.bits * 2 + codec.stochastic) {
    case 16:
      return EncodePart<8, false>(part, x, dither, new_residual);
    case 17:
      return EncodePart<8, true>(part, x, dither, new_residual);
    case 8:
      return EncodePart<4, false>(part, x, dither, new_residual);
    case 9:
      return EncodePart<4, true>(part, x, dither, new_residual);
    case 4:
      return EncodePart<2, false>(part, x, dither, new_residual);
    case 5:
      return EncodePart<2, true>(part, x, dither, new_residual);
  }
}

template <int kBits>
GRADCOMP_INLINE bool Decode(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                            int64_t block_size, int64_t first, int64_t count, const Sink& sink) {
  const uint8_t* scales = payloads;
  const uint8_t* codes = payloads + CeilDiv(n, block_size) * kScaleSize;
  const BlocksIn in = {payloads, stride, world, n};
  DecodedBlocks whole = DecodeBlocksV4<kBits>(in, block_size, first, count, sink);
  if (whole.elements == 0) whole = DecodeBlocksV3<kBits>(in, block_size, first, count, sink);
  bool finite = whole.finite;
  for (int64_t at = first + whole.elements; at < first + count;) {
    const int64_t begin = at / block_size * block_size;
    const int64_t size = std::min(block_size, n - begin);
    const int64_t length = std::min({kTile, begin + size - at, first + count - at});
    float sum[kTile];
    for (int64_t rank = 0; rank < world; ++rank) {
      float scale;
      std::memcpy(&scale, scales + rank * stride + begin / block_size * kScaleSize, kScaleSize);
      const uint8_t* bytes = codes + rank * stride + begin * kBits / 8;
      VisitPlanes<kBits>(CeilDiv(size * kBits, 8), at - begin, length,
                         Unpacker<kBits>{bytes, scale, rank > 0, sum});
    }
    finite &= StoreScaled(sum, length, sink, at - first);
    at += length;
  }
  return finite;
}

}  // namespace

GRADCOMP_CLONES void QuantizeEncode(const Codec& codec, const Source& source, int64_t n,
                                    int64_t first, int64_t count, int64_t start,
                                    const RandomStream& stream, uint8_t* payload) {
  const int64_t block_size = codec.block_size;
  uint8_t* scales = payload;
  uint8_t* codes = payload + CeilDiv(n, block_size) * kScaleSize;
  Dither dither(stream);
  const BlocksOut out = {scales + first / block_size * kScaleSize, codes + first * codec.bits / 8,
                         start + first};
  int64_t done = EncodeBlocksV4(codec, source, count, stream, out);
  if (done == 0) done = EncodeBlocksV3(codec, source, count, stream, out);
  for (int64_t begin = first + done; begin < first + count; begin += block_size) {
    const int64_t size = std::min(block_size, n - begin);
    const Source block = Advance(source, begin - first);
    float x[kTile];
    uint32_t largest = 0;
    for (int64_t at = 0; at < size; at += kTile) {
      const int64_t length = std::min(kTile, size - at);
      largest = std::max(largest, LoadCorrected(block, at, length, x));
    }
    const BlockScale scale = ScaleOfBlock(largest, codec.bits);
    std::memcpy(scales + begin / block_size * kScaleSize, &scale.scale, kScaleSize);
    for (int64_t at = 0; at < size; at += kTile) {
      const int64_t length = std::min(kTile, size - at);
      // A block of one tile is still there.
      if (size > kTile) LoadCorrected(block, at, length, x);
      const float* random = codec.stochastic ? dither.Get(start + begin + at, length) : nullptr;
      const Part part = {size, at, length, scale, codes + begin * codec.bits / 8};
      EncodePart(codec, part, x, random, Advance(block, at).new_residual);
    }
  }
}

GRADCOMP_CLONES bool QuantizeDecode(const Codec& codec, const uint8_t* payloads, int64_t stride,
                                    int64_t world, int64_t n, int64_t first, int64_t count,
                                    const Sink& sink) {
  const int64_t block = codec.block_size;
  if (codec.bits == 8) return Decode<8>(payloads, stride, world, n, block, first, count, sink);
  if (codec.bits == 4) return Decode<4>(payloads, stride, world, n, block, first, count, sink);
  return Decode<2>(payloads, stride, world, n, block, first, count, sink);
}

}  // namespace gradcomp
