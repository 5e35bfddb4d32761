#include "cpu/sign.h"

#include <algorithm>
#include <cstring>

#include "core/sign.h"
#include "cpu/simd.h"

namespace gradcomp {
namespace {

constexpr int64_t kScaleSize = sizeof(float);
// Byte j of a block of B bytes has in bit p, its plane, the sign of element p * B + j.
constexpr int64_t kPlanes = 8;
// Bytes of a block encoded at a time, and elements: the default block is one tile.
constexpr int64_t kTileBytes = 64;
constexpr int64_t kSignTile = kPlanes * kTileBytes;

// The sum of magnitudes; of a block of one tile, x then holds its elements, and zeros up to a
// multiple of the lanes.
GRADCOMP_INLINE float SumOfBlock(const Source& block, int64_t size, float unit, float* x) {
  float lanes[kSignLanes] = {};
  for (int64_t at = 0; at < size; at += kSignTile) {
    const int64_t length = std::min(kSignTile, size - at);
    const int64_t padded = CeilDiv(length, kSignLanes) * kSignLanes;
    LoadCorrected(block, at, length, x);
    std::fill(x + length, x + padded, 0.0f);
    for (int64_t i = 0; i < padded; i += kSignLanes) {
      for (int lane = 0; lane < kSignLanes; ++lane) {
        lanes[lane] = AddMagnitude(lanes[lane], x[i + lane], unit);
      }
    }
  }
  return SumOfLanes(lanes);
}

GRADCOMP_INLINE uint32_t LargestOfBlock(const Source& block, int64_t size, float* x) {
  uint32_t largest = 0;
  for (int64_t at = 0; at < size; at += kSignTile) {
    const int64_t length = std::min(kSignTile, size - at);
    largest = std::max(largest, LoadCorrected(block, at, length, x));
  }
  return largest;
}

// Leaves x as SumOfBlock does.
GRADCOMP_INLINE float ScaleOfBlock(const Source& block, int64_t size, float* x) {
  const float sum = SumOfBlock(block, size, 1.0f, x);
  if (Magnitude(sum) < kInfinityBits) return SignScale(sum, size);
  const uint32_t largest = LargestOfBlock(block, size, x);
  if (largest >= kInfinityBits) return FloatFromBits(kNanBits);
  return HugeSignScale(SumOfBlock(block, size, kSignSmallUnit, x), size, largest);
}

GRADCOMP_INLINE void StoreResidual(const float* __restrict x, int64_t n, float scale,
                                   Float32* __restrict new_residual) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t sign = FloatBits(x[i]) & ~kMagnitudeMask;
    new_residual[i].value = x[i] - FloatFromBits(FloatBits(scale) | sign);
  }
}

// Byte j: the signs of x[p * size + j].
GRADCOMP_INLINE void PackSigns(const float* __restrict x, int64_t size, uint8_t* __restrict bytes) {
  for (int64_t j = 0; j < size; ++j) {
    uint32_t byte = 0;
#pragma GCC unroll 8
    for (int64_t plane = 0; plane < kPlanes; ++plane) {
      byte |= FloatBits(x[plane * size + j]) >> 31 << plane;
    }
    bytes[j] = static_cast<uint8_t>(byte);
  }
}

// A block of one tile, whose elements x holds.
GRADCOMP_INLINE void EncodeTile(const Source& block, int64_t size, float scale, const float* x,
                                uint8_t* bytes) {
  if (block.new_residual) StoreResidual(x, size, scale, block.new_residual);
  if (size == kSignTile) {
    PackSigns(x, kTileBytes, bytes);
  } else {
    PackSigns(x, CeilDiv(size, kPlanes), bytes);
  }
}

// A larger block, some bytes at a time: their elements are a run in each plane.
GRADCOMP_INLINE void EncodeTiles(const Source& block, int64_t size, float scale, float* x,
                                 uint8_t* bytes) {
  const int64_t all_bytes = CeilDiv(size, kPlanes);
  for (int64_t first = 0; first < all_bytes; first += kTileBytes) {
    const int64_t length = std::min(kTileBytes, all_bytes - first);
    for (int64_t plane = 0; plane < kPlanes; ++plane) {
      const int64_t begin = std::min(plane * all_bytes + first, size);
      const int64_t count = std::min(length, size - begin);
      float* run = x + plane * length;
      LoadCorrected(block, begin, count, run);
      std::fill(run + count, run + length, 0.0f);
      if (block.new_residual) StoreResidual(run, count, scale, block.new_residual + begin);
    }
    PackSigns(x, length, bytes + first);
  }
}

// A block whose scale is 0 or NaN: all bits are 0, and the residual is all of it, or NaN.
GRADCOMP_INLINE void EncodeNothing(const Source& block, int64_t size, float scale, float* x,
                                   uint8_t* bytes) {
  std::fill_n(bytes, CeilDiv(size, kPlanes), uint8_t{0});
  for (int64_t at = 0; block.new_residual && at < size; at += kSignTile) {
    const int64_t length = std::min(kSignTile, size - at);
    LoadCorrected(block, at, length, x);
    for (int64_t i = 0; i < length; ++i) {
      block.new_residual[at + i].value = Canonical(x[i] - scale);
    }
  }
}

// Adds elements [first, first + n) of a block of `size` bytes to sum, or sets it.
GRADCOMP_INLINE void AddSigns(const uint8_t* bytes, int64_t size, int64_t first, int64_t n,
                              float scale, bool add, float* sum) {
  for (int64_t plane = first / size; plane * size < first + n; ++plane) {
    const int64_t begin = std::max(first, plane * size);
    const int64_t count = std::min(first + n, (plane + 1) * size) - begin;
    const uint8_t* __restrict from = bytes + (begin - plane * size);
    float* __restrict to = sum + (begin - first);
    const uint32_t positive = FloatBits(scale);
    const int shift = static_cast<int>(31 - plane);
    if (add) {
      for (int64_t i = 0; i < count; ++i) {
        to[i] += FloatFromBits(positive ^ (static_cast<uint32_t>(from[i]) << shift & 0x80000000));
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = FloatFromBits(positive ^ (static_cast<uint32_t>(from[i]) << shift & 0x80000000));
      }
    }
  }
}

}  // namespace

GRADCOMP_CLONES void SignEncode(const Codec& codec, const Source& source, int64_t n, int64_t first,
                                int64_t count, uint8_t* payload) {
  const int64_t block_size = codec.block_size;
  uint8_t* scales = payload;
  uint8_t* bits = payload + CeilDiv(n, block_size) * kScaleSize;
  for (int64_t begin = first; begin < first + count; begin += block_size) {
    const int64_t size = std::min(block_size, n - begin);
    const Source block = Advance(source, begin - first);
    uint8_t* bytes = bits + begin / kPlanes;
    float x[kSignTile];
    const float scale = ScaleOfBlock(block, size, x);
    std::memcpy(scales + begin / block_size * kScaleSize, &scale, kScaleSize);
    if (!(scale > 0)) {
      EncodeNothing(block, size, scale, x, bytes);
    } else if (size <= kSignTile) {
      EncodeTile(block, size, scale, x, bytes);
    } else {
      EncodeTiles(block, size, scale, x, bytes);
    }
  }
}

GRADCOMP_CLONES bool SignDecode(const Codec& codec, const uint8_t* payloads, int64_t stride,
                                int64_t world, int64_t n, int64_t first, int64_t count,
                                const Sink& sink) {
  const int64_t block_size = codec.block_size;
  const uint8_t* scales = payloads;
  const uint8_t* bits = payloads + CeilDiv(n, block_size) * kScaleSize;
  bool finite = true;
  for (int64_t at = first; at < first + count;) {
    const int64_t begin = at / block_size * block_size;
    const int64_t size = std::min(block_size, n - begin);
    const int64_t length = std::min({kSignTile, begin + size - at, first + count - at});
    float sum[kSignTile];
    for (int64_t rank = 0; rank < world; ++rank) {
      float scale;
      std::memcpy(&scale, scales + rank * stride + begin / block_size * kScaleSize, kScaleSize);
      AddSigns(bits + rank * stride + begin / kPlanes, CeilDiv(size, kPlanes), at - begin, length,
               scale, rank > 0, sum);
    }
    finite &= StoreScaled(sum, length, sink, at - first);
    at += length;
  }
  return finite;
}

}  // namespace gradcomp
