#include <cstring>

#include "core/quantize.h"
#include "cpu/quantize_blocks.h"
#include "cpu/tile_v4.h"

namespace gradcomp {

#if defined(GRADCOMP_V4)
namespace {

// Floats from 2^23 to 2^24 have no bits for a fraction: added to it, codes are in the lowest bits.
constexpr float kMagic = 0x1.8p23f;

// A block's elements, and their largest magnitude. NaN may be any: it makes NaN of all the block.
GRADCOMP_V4_INLINE uint32_t LoadBlockV4(const Source& block, int64_t ahead, __m512 (&x)[kVectors]) {
  __m512i largest = _mm512_setzero_si512();
  GRADCOMP_UNROLL(16)
  for (int i = 0; i < kVectors; ++i) {
    AskForGradientV4(block, i * kLanes, ahead);
    x[i] = LoadSumV4(block, i * kLanes);
    largest = _mm512_max_epi32(largest, MagnitudeV4(x[i]));
  }
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(largest));
}

// kMagic + the code of each lane, as QuantizeCode.
template <int kBits, bool kStochastic>
GRADCOMP_V4_INLINE __m512 BiasedCodesV4(__m512 x, __m512 inverse, const float* dither) {
  const __m512 y = _mm512_mul_ps(x, inverse);
  const __m512 magic = _mm512_set1_ps(kMagic);
  if constexpr (!kStochastic) return _mm512_add_ps(y, magic);
  const __m512 sum = _mm512_add_ps(y, _mm512_load_ps(dither));
  const __m512 codes = _mm512_add_round_ps(sum, _mm512_set1_ps(kMagic - 8),
                                           _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  if constexpr (kBits < 8) return codes;
  constexpr float kMax = QuantizeMax(kBits);
  const __m512 low = _mm512_max_ps(codes, _mm512_set1_ps(kMagic - kMax));
  return _mm512_min_ps(low, _mm512_set1_ps(kMagic + kMax));
}

// Writes the codes of a block `x`, and what they lose.
template <int kBits, bool kStochastic, bool kResidual>
GRADCOMP_V4_INLINE void EncodeBlockV4(const Source& block, int64_t ahead,
                                      const __m512 (&x)[kVectors], BlockScale scale,
                                      const float* dither, uint8_t* codes) {
  constexpr int kPlanes = 8 / kBits;
  constexpr int kOfPlane = kVectors / kPlanes;
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512 step = _mm512_set1_ps(scale.scale);
  // Without residuals to write, what a stochastic block streams is slower than what it stores.
  const bool streamed = (kResidual || !kStochastic) && CanStream(block, codes);
  GRADCOMP_UNROLL(16)
  for (int i = 0; i < kOfPlane; ++i) {
    __m512i bytes = _mm512_setzero_si512();
    GRADCOMP_UNROLL(4)
    for (int plane = 0; plane < kPlanes; ++plane) {
      const int at = plane * kOfPlane + i;
      const __m512 biased = BiasedCodesV4<kBits, kStochastic>(x[at], inverse, dither + at * kLanes);
      __m512i code = _mm512_castps_si512(biased);
      // What is above the last plane falls off when bytes are made.
      if (plane + 1 < kPlanes) code = _mm512_and_si512(code, _mm512_set1_epi32((1 << kBits) - 1));
      bytes = _mm512_or_si512(bytes, _mm512_slli_epi32(code, plane * kBits));
      if constexpr (kResidual) {
        const __m512 sent = _mm512_mul_ps(_mm512_sub_ps(biased, _mm512_set1_ps(kMagic)), step);
        _mm512_storeu_ps(block.new_residual + at * kLanes, _mm512_sub_ps(x[at], sent));
        AskForResidualV4(block, at * kLanes, ahead);
      }
    }
    __m128i* const out = reinterpret_cast<__m128i*>(codes + i * kLanes);
    if (streamed) {
      _mm_stream_si128(out, _mm512_cvtepi32_epi8(bytes));
    } else {
      _mm_storeu_si128(out, _mm512_cvtepi32_epi8(bytes));
    }
  }
}

struct KernelV4 {
  template <int kBits, bool kStochastic, bool kResidual>
  GRADCOMP_V4 static void Encode(const Source& source, int64_t blocks, const RandomStream& stream,
                                 const BlocksOut& out) {
    alignas(kCacheLine) float dither[kTile] = {};
    const int64_t ahead = ElementsAhead();
    for (int64_t turn = 0; turn < blocks; ++turn) {
      const int64_t i = InTwoStreams(turn, blocks);
      const Source block = Advance(source, i * kTile);
      if constexpr (kStochastic) {
        const int64_t group = (out.element + i * kTile) / kRandomGroup;
        for (int j = 0; j < kTile / kRandomGroup; ++j) {
          FillDither(stream, group + j, dither + j * kRandomGroup);
        }
      }
      __m512 x[kVectors];
      const BlockScale scale = ScaleOfBlock(LoadBlockV4(block, ahead, x), kBits);
      std::memcpy(out.scales + i * kScaleSize, &scale.scale, kScaleSize);
      uint8_t* const codes = out.codes + i * kTile * kBits / 8;
      if (scale.scale == scale.scale) {
        EncodeBlockV4<kBits, kStochastic, kResidual>(block, ahead, x, scale, dither, codes);
      } else {
        std::memset(codes, 0, kTile * kBits / 8);
        for (int64_t j = 0; kResidual && j < kTile; ++j) block.new_residual[j].value = scale.scale;
      }
    }
    if (source.large) _mm_sfence();  // before other threads are told that it is there
  }
};

}  // namespace

int64_t EncodeBlocksV4(const Codec& codec, const Source& source, int64_t count,
                       const RandomStream& stream, const BlocksOut& out) {
  return HasV4() ? EncodeBlocksBy<KernelV4>(codec, source, count, stream, out) : 0;
}

#else
int64_t EncodeBlocksV4(const Codec&, const Source&, int64_t, const RandomStream&,
                       const BlocksOut&) {
  return 0;
}
#endif

}  // namespace gradcomp
