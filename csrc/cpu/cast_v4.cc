#include "cpu/cast_vectors.h"
#include "cpu/tile_v4.h"

namespace gradcomp {

#if defined(GRADCOMP_V4)
namespace {

// Vectors that are converted before one looks whether all of them were ordinary.
constexpr int kAtOnce = 4;

// Finite values beyond the largest half become it; infinities and NaN pass.
GRADCOMP_V4_INLINE __m512 SaturateV4(__m512 x) {
  const __m512i infinity = _mm512_set1_epi32(static_cast<int32_t>(kInfinityBits));
  const __mmask16 finite = _mm512_cmplt_epi32_mask(MagnitudeV4(x), infinity);
  const __m512 low = _mm512_mask_min_ps(x, finite, x, _mm512_set1_ps(kHalfMax));
  return _mm512_mask_max_ps(low, finite, low, _mm512_set1_ps(-kHalfMax));
}

GRADCOMP_V4_INLINE __m256i HalfsFromFloatsV4(__m512 x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

// Which halfs are infinities or NaN.
GRADCOMP_V4_INLINE __mmask16 NotFiniteV4(__m256i halfs) {
  const __m256i exponent = _mm256_set1_epi16(kHalfInfinityBits);
  return _mm256_cmpeq_epi16_mask(_mm256_and_si256(halfs, exponent), exponent);
}

template <bool kStreamed>
GRADCOMP_V4_INLINE void StoreHalfsV4(void* wire, __m256i halfs) {
  if constexpr (kStreamed) {
    __m128i* const out = static_cast<__m128i*>(wire);
    _mm_stream_si128(out, _mm256_castsi256_si128(halfs));
    _mm_stream_si128(out + 1, _mm256_extracti128_si256(halfs, 1));
  } else {
    _mm256_storeu_si256(static_cast<__m256i*>(wire), halfs);
  }
}

template <bool kResidual, bool kStreamed>
GRADCOMP_V4 int64_t Encode(const Source& source, int64_t n, Float16* wire) {
  constexpr int64_t kStep = kAtOnce * kLanes;
  const int64_t ahead = ElementsAhead();
  int64_t first = 0;
  for (; first + kStep <= n; first += kStep) {
    __m512 x[kAtOnce];
    __m256i halfs[kAtOnce];
    int not_finite = 0;
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
      AskForGradientV4(source, first + i * kLanes, ahead);
      x[i] = LoadSumV4(source, first + i * kLanes);
      halfs[i] = HalfsFromFloatsV4(x[i]);
      not_finite |= NotFiniteV4(halfs[i]);
    }
    // Finite halfs come from finite numbers in their range, which are the rule.
    if (__builtin_expect(not_finite != 0, 0)) {
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] = CanonicalV4(x[i]);
        halfs[i] = HalfsFromFloatsV4(SaturateV4(x[i]));
      }
    }
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = first + i * kLanes;
      StoreHalfsV4<kStreamed>(wire + at, halfs[i]);
      if constexpr (kResidual) {
        __m512 lost = _mm512_sub_ps(x[i], _mm512_cvtph_ps(halfs[i]));
        if (__builtin_expect(not_finite != 0, 0)) lost = CanonicalV4(lost);
        _mm512_storeu_ps(source.new_residual + at, lost);
        AskForResidualV4(source, at, ahead);
      }
    }
  }
  if (kStreamed) _mm_sfence();  // before other threads are told that it is there
  return first;
}

template <bool kResidual>
int64_t Encode(const Source& source, int64_t n, Float16* wire) {
  return CanStream(source, wire) ? Encode<kResidual, true>(source, n, wire)
                                 : Encode<kResidual, false>(source, n, wire);
}

GRADCOMP_V4_INLINE __m512 FloatsFromHalfsV4(const uint8_t* halfs) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halfs)));
}

template <bool kStreamed>
GRADCOMP_V4 bool Decode(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                        const Sink& sink) {
  const __m512 factor = _mm512_set1_ps(sink.scale);
  Float32* const output = static_cast<Float32*>(sink.output);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t first = 0; first < n; first += kLanes) {
    const uint8_t* halfs = payloads + first * static_cast<int64_t>(sizeof(Float16));
    __m512 sum = FloatsFromHalfsV4(halfs);
    for (int64_t rank = 1; rank < world; ++rank) {
      halfs += stride;
      sum = _mm512_add_ps(sum, FloatsFromHalfsV4(halfs));
    }
    const __m512 x = CanonicalV4(_mm512_mul_ps(sum, factor));
    StoreV4<kStreamed>(output + first, x);
    largest = _mm512_max_epi32(largest, MagnitudeV4(x));
  }
  if (kStreamed) _mm_sfence();  // before other threads are told that it is there
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(largest)) < kInfinityBits;
}

}  // namespace

int64_t EncodeHalfsV4(const Source& source, int64_t n, Float16* wire) {
  if (!HasV4() || source.dtype != DType::kFloat32) return 0;
  return source.new_residual ? Encode<true>(source, n, wire) : Encode<false>(source, n, wire);
}

int64_t DecodeHalfsV4(const uint8_t* payloads, int64_t stride, int64_t world, int64_t n,
                      const Sink& sink, bool* finite) {
  if (!HasV4() || sink.dtype != DType::kFloat32) return 0;
  const int64_t whole = n / kLanes * kLanes;
  const auto decode = CanStream(sink) ? Decode<true> : Decode<false>;
  *finite &= decode(payloads, stride, world, whole, sink);
  return whole;
}

#else
int64_t EncodeHalfsV4(const Source&, int64_t, Float16*) { return 0; }
int64_t DecodeHalfsV4(const uint8_t*, int64_t, int64_t, int64_t, const Sink&, bool*) { return 0; }
#endif

}  // namespace gradcomp
