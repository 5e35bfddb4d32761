#include <cstring>

#include "cpu/quantize_blocks.h"
#include "cpu/tile_v4.h"

namespace gradcomp {

#if defined(GRADCOMP_V4)
namespace {

// What codes of a block mean.
template <int kBits>
class Values {
 public:
  GRADCOMP_V4_INLINE explicit Values(float scale) {
    factors_ = _mm512_set1_ps(scale);
    if constexpr (kBits < 8) {
      // All that the lowest four bits can be, of which a shorter code is the last ones.
      const __m512i four = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i top = _mm512_slli_epi32(four, 32 - kBits);
      const __m512 codes = _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 32 - kBits));
      factors_ = _mm512_mul_ps(codes, factors_);
    }
  }

  // Those of a plane of 16 bytes.
  GRADCOMP_V4_INLINE __m512 Get(const uint8_t* bytes, int plane) const {
    const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    if constexpr (kBits == 8) {
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(loaded)), factors_);
    } else {
      const __m512i codes = _mm512_srli_epi32(_mm512_cvtepu8_epi32(loaded), plane * kBits);
      return _mm512_permutexvar_ps(codes, factors_);
    }
  }

 private:
  __m512 factors_;
};

template <int kBits, bool kFirst>
GRADCOMP_V4_INLINE void AddV4(const Block& block, __m512 (&sums)[kVectors]) {
  constexpr int kOfPlane = kVectors * kBits / 8;
  float scale;
  std::memcpy(&scale, block.scale, sizeof(scale));
  const Values<kBits> values(scale);
  GRADCOMP_UNROLL(16)
  for (int i = 0; i < kVectors; ++i) {
    const __m512 x = values.Get(block.codes + i % kOfPlane * kLanes, i / kOfPlane);
    sums[i] = kFirst ? x : _mm512_add_ps(sums[i], x);
  }
}

struct KernelV4 {
  template <int kBits, bool kStreamed>
  GRADCOMP_V4 static bool Decode(const Block& first, const BlocksIn& in, int64_t blocks,
                                 const Sink& sink) {
    const __m512 factor = _mm512_set1_ps(sink.scale);
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < blocks; ++i) {
      Block block = {first.scale + i * kScaleSize, first.codes + i * kTile * kBits / 8};
      __m512 sums[kVectors];
      AddV4<kBits, true>(block, sums);
      for (int64_t rank = 1; rank < in.world; ++rank) {
        block = {block.scale + in.stride, block.codes + in.stride};
        AddV4<kBits, false>(block, sums);
      }
      Float32* const output = static_cast<Float32*>(sink.output) + i * kTile;
      GRADCOMP_UNROLL(16)
      for (int j = 0; j < kVectors; ++j) {
        const __m512 x = CanonicalV4(_mm512_mul_ps(sums[j], factor));
        StoreV4<kStreamed>(output + j * kLanes, x);
        largest = _mm512_max_epi32(largest, MagnitudeV4(x));
      }
    }
    if (kStreamed) _mm_sfence();  // before other threads are told that it is there
    return static_cast<uint32_t>(_mm512_reduce_max_epi32(largest)) < kInfinityBits;
  }
};

}  // namespace

template <int kBits>
DecodedBlocks DecodeBlocksV4(const BlocksIn& in, int64_t block_size, int64_t first, int64_t count,
                             const Sink& sink) {
  if (!HasV4()) return {0, true};
  return DecodeBlocksBy<KernelV4, kBits>(in, block_size, first, count, sink);
}

#else
template <int kBits>
DecodedBlocks DecodeBlocksV4(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&) {
  return {0, true};
}
#endif

template DecodedBlocks DecodeBlocksV4<8>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);
template DecodedBlocks DecodeBlocksV4<4>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);
template DecodedBlocks DecodeBlocksV4<2>(const BlocksIn&, int64_t, int64_t, int64_t, const Sink&);

}  // namespace gradcomp
