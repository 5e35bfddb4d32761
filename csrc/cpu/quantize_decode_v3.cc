#include <cstring>

#include "cpu/quantize_blocks.h"
#include "cpu/tile_v3.h"

namespace gradcomp {

#if defined(GRADCOMP_V3)
namespace {

// Vectors of sums kept in registers at a time.
constexpr int kAtOnce = 8;
constexpr int64_t kStep = kAtOnce * kLanesV3;

// Adds what codes of one plane mean to sums, or sets these.
template <int kBits, bool kFirst>
GRADCOMP_V3_INLINE void AddV3(const uint8_t* scale, const uint8_t* bytes, int plane,
                              __m256 (&sums)[kAtOnce]) {
  float factor;
  std::memcpy(&factor, scale, sizeof(factor));
  const __m256 factors = _mm256_set1_ps(factor);
  GRADCOMP_UNROLL(8)
  for (int i = 0; i < kAtOnce; ++i) {
    const __m128i loaded = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + i * kLanesV3));
    __m256i codes = _mm256_cvtepi8_epi32(loaded);
    // Of a short code the sign is in the middle of its byte.
    if constexpr (kBits < 8) {
      codes = _mm256_slli_epi32(codes, 32 - kBits - plane * kBits);
      codes = _mm256_srai_epi32(codes, 32 - kBits);
    }
    const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), factors);
    sums[i] = kFirst ? x : _mm256_add_ps(sums[i], x);
  }
}

struct KernelV3 {
  template <int kBits, bool kStreamed>
  GRADCOMP_V3 static bool Decode(const Block& first, const BlocksIn& in, int64_t blocks,
                                 const Sink& sink) {
    constexpr int64_t kOfPlane = kTile * kBits / 8;
    const __m256 factor = _mm256_set1_ps(sink.scale);
    __m256i largest = _mm256_setzero_si256();
    for (int64_t at = 0; at < blocks * kTile; at += kStep) {
      const int64_t block = at / kTile;
      const int plane = static_cast<int>(at % kTile / kOfPlane);
      const uint8_t* scale = first.scale + block * kScaleSize;
      const uint8_t* codes = first.codes + block * kOfPlane + at % kOfPlane;
      __m256 sums[kAtOnce];
      AddV3<kBits, true>(scale, codes, plane, sums);
      for (int64_t rank = 1; rank < in.world; ++rank) {
        AddV3<kBits, false>(scale += in.stride, codes += in.stride, plane, sums);
      }
      Float32* const output = static_cast<Float32*>(sink.output) + at;
      GRADCOMP_UNROLL(8)
      for (int i = 0; i < kAtOnce; ++i) {
        sums[i] = _mm256_mul_ps(sums[i], factor);
        largest = _mm256_max_epi32(largest, MagnitudeV3(sums[i]));
      }
      if (__builtin_expect(AnyNotFiniteV3(largest), 0)) {
        for (int i = 0; i < kAtOnce; ++i) sums[i] = CanonicalV3(sums[i]);
      }
      GRADCOMP_UNROLL(8)
      for (int i = 0; i < kAtOnce; ++i) {
        if constexpr (kStreamed) {
          StreamV3(output + i * kLanesV3, sums[i]);
        } else {
          StoreV3(output + i * kLanesV3, sums[i]);
        }
      }
    }
    if (kStreamed) _mm_sfence();  // before other threads are told that it is there
    return !AnyNotFiniteV3(largest);
  }
};

}  // namespace

template <int kBits>
DecodedBlocks DecodeBlocksV3(const BlocksIn& in, int64_t block_size, int64_t first, int64_t count,
                             const Sink& sink) {
  if (!HasV3()) return {0, true};
  return DecodeBlocksBy<KernelV3, kBits>(in, block_size, first, count, sink);
}

#else
template <int kBits>
DecodedBlocks DecodeBlocksV3(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&) {
  return {0, true};
}
#endif

template DecodedBlocks DecodeBlocksV3<8>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);
template DecodedBlocks DecodeBlocksV3<4>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);
template DecodedBlocks DecodeBlocksV3<2>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);

}  // namespace gradcomp
