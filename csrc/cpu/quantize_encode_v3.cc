#include <cstring>

#include "core/quantize.h"
#include "cpu/quantize_blocks.h"
#include "cpu/tile_v3.h"

namespace gradcomp {

#if defined(GRADCOMP_V3)
namespace {

// Vectors whose codes, one an element, fill one.
constexpr int kAtOnce = 4;

// The largest magnitude of a block, and where its elements are: sums are written to `sums`. NaN may
// be any: it makes NaN of all the block.
struct Loaded {
  const Float32* x;
  uint32_t largest;
};

GRADCOMP_V3_INLINE Loaded LoadBlockV3(const Source& block, Float32* sums) {
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < kTile; i += kLanesV3) {
    const __m256 x = LoadSumV3(block, i);
    if (block.residual != nullptr) StoreV3(sums + i, x);
    largest = _mm256_max_epi32(largest, MagnitudeV3(x));
  }
  const Float32* const gradient = static_cast<const Float32*>(block.gradient);
  return {block.residual != nullptr ? sums : gradient, LargestV3(largest)};
}

// The code of each lane, as QuantizeCode.
template <int kBits, bool kStochastic>
GRADCOMP_V3_INLINE __m256i CodesV3(__m256 x, __m256 inverse, const float* dither) {
  const __m256 y = _mm256_mul_ps(x, inverse);
  if constexpr (!kStochastic) return _mm256_cvtps_epi32(y);
  const __m256 sum = _mm256_add_ps(y, _mm256_load_ps(dither));
  const __m256i eight = _mm256_set1_epi32(8);
  if constexpr (kBits < 8) return _mm256_sub_epi32(_mm256_cvttps_epi32(sum), eight);
  const __m256i code = _mm256_sub_epi32(_mm256_cvttps_epi32(_mm256_floor_ps(sum)), eight);
  constexpr int kMax = QuantizeMax(kBits);
  const __m256i low = _mm256_max_epi32(code, _mm256_set1_epi32(-kMax));
  return _mm256_min_epi32(low, _mm256_set1_epi32(kMax));
}

// The lowest bytes of 32 integers, in order.
GRADCOMP_V3_INLINE __m256i BytesV3(const __m256i (&x)[kAtOnce]) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i low = _mm256_packus_epi32(_mm256_and_si256(x[0], byte),  //
                                          _mm256_and_si256(x[1], byte));
  const __m256i high = _mm256_packus_epi32(_mm256_and_si256(x[2], byte),  //
                                           _mm256_and_si256(x[3], byte));
  // Packing interleaves the halves of vectors.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
}

// Writes the codes of a block, and what they lose.
template <int kBits, bool kStochastic, bool kResidual>
GRADCOMP_V3_INLINE void EncodeBlockV3(const Float32* block, BlockScale scale, const float* dither,
                                      uint8_t* codes, Float32* lost) {
  constexpr int kPlanes = 8 / kBits;
  constexpr int64_t kBytes = kTile / kPlanes;
  const __m256 inverse = _mm256_set1_ps(scale.inverse);
  const __m256 step = _mm256_set1_ps(scale.scale);
  for (int64_t first = 0; first < kBytes; first += kAtOnce * kLanesV3) {
    __m256i bytes[kAtOnce];
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
      bytes[i] = _mm256_setzero_si256();
      GRADCOMP_UNROLL(4)
      for (int plane = 0; plane < kPlanes; ++plane) {
        const int64_t at = plane * kBytes + first + i * kLanesV3;
        const __m256 x = LoadV3(block + at);
        const __m256i code = CodesV3<kBits, kStochastic>(x, inverse, dither + at);
        if constexpr (kResidual) {
          const __m256 sent = _mm256_mul_ps(_mm256_cvtepi32_ps(code), step);
          StoreV3(lost + at, _mm256_sub_ps(x, sent));
        }
        // What is above the last plane falls off when bytes are made.
        const __m256i mask = _mm256_set1_epi32((1 << kBits) - 1);
        const __m256i bits = plane + 1 < kPlanes ? _mm256_and_si256(code, mask) : code;
        bytes[i] = _mm256_or_si256(bytes[i], _mm256_slli_epi32(bits, plane * kBits));
      }
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + first), BytesV3(bytes));
  }
}

struct KernelV3 {
  template <int kBits, bool kStochastic, bool kResidual>
  GRADCOMP_V3 static void Encode(const Source& source, int64_t blocks, const RandomStream& stream,
                                 const BlocksOut& out) {
    alignas(kCacheLine) float dither[kTile];
    for (int64_t turn = 0; turn < blocks; ++turn) {
      const int64_t i = InTwoStreams(turn, blocks);
      const Source block = Advance(source, i * kTile);
      if constexpr (kStochastic) {
        const int64_t group = (out.element + i * kTile) / kRandomGroup;
        for (int j = 0; j < kTile / kRandomGroup; ++j) {
          FillDither(stream, group + j, dither + j * kRandomGroup);
        }
      }
      Float32 sums[kTile];
      const Loaded loaded = LoadBlockV3(block, sums);
      const BlockScale scale = ScaleOfBlock(loaded.largest, kBits);
      std::memcpy(out.scales + i * kScaleSize, &scale.scale, kScaleSize);
      uint8_t* const codes = out.codes + i * kTile * kBits / 8;
      if (scale.scale == scale.scale) {
        EncodeBlockV3<kBits, kStochastic, kResidual>(loaded.x, scale, dither, codes,
                                                     block.new_residual);
      } else {
        std::memset(codes, 0, kTile * kBits / 8);
        for (int64_t j = 0; kResidual && j < kTile; ++j) block.new_residual[j].value = scale.scale;
      }
    }
  }
};

}  // namespace

int64_t EncodeBlocksV3(const Codec& codec, const Source& source, int64_t count,
                       const RandomStream& stream, const BlocksOut& out) {
  return HasV3() ? EncodeBlocksBy<KernelV3>(codec, source, count, stream, out) : 0;
}

#else
int64_t EncodeBlocksV3(const Codec&, const Source&, int64_t, const RandomStream&,
                       const BlocksOut&) {
  return 0;
}
#endif

}  // namespace gradcomp
