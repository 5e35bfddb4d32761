#include "cpu/cast_vectors.h"
#include "cpu/tile_v3.h"

namespace gradcomp {

#if defined(GRADCOMP_V3)
namespace {

// Vectors that are converted before one looks whether all of them were ordinary.
constexpr int kAtOnce = 4;

// Finite values beyond the largest half become it; infinities and NaN pass.
GRADCOMP_V3_INLINE __m256 SaturateV3(__m256 x) {
  const __m256i infinity = _mm256_set1_epi32(static_cast<int32_t>(kInfinityBits));
  const __m256 finite = _mm256_castsi256_ps(_mm256_cmpgt_epi32(infinity, MagnitudeV3(x)));
  const __m256 low = _mm256_min_ps(x, _mm256_set1_ps(kHalfMax));
  return _mm256_blendv_ps(x, _mm256_max_ps(low, _mm256_set1_ps(-kHalfMax)), finite);
}

GRADCOMP_V3_INLINE __m128i HalfsFromFloatsV3(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

// All ones where halfs are infinities or NaN.
GRADCOMP_V3_INLINE __m128i NotFiniteV3(__m128i halfs) {
  const __m128i exponent = _mm_set1_epi16(kHalfInfinityBits);
  return _mm_cmpeq_epi16(_mm_and_si128(halfs, exponent), exponent);
}

template <bool kResidual>
GRADCOMP_V3 int64_t Encode(const Source& source, int64_t n, Float16* wire) {
  constexpr int64_t kStep = kAtOnce * kLanesV3;
  const int64_t steps = n / kStep;
  for (int64_t turn = 0; turn < steps; ++turn) {
    const int64_t first = InTwoStreams(turn, steps) * kStep;
    __m256 x[kAtOnce];
    __m128i halfs[kAtOnce];
    __m128i not_finite = _mm_setzero_si128();
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = LoadSumV3(source, first + i * kLanesV3);
      halfs[i] = HalfsFromFloatsV3(x[i]);
      not_finite = _mm_or_si128(not_finite, NotFiniteV3(halfs[i]));
    }
    // Finite halfs come from finite numbers in their range, which are the rule.
    const bool special = _mm_testz_si128(not_finite, not_finite) == 0;
    if (__builtin_expect(special, 0)) {
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] = CanonicalV3(x[i]);
        halfs[i] = HalfsFromFloatsV3(SaturateV3(x[i]));
      }
    }
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = first + i * kLanesV3;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(wire + at), halfs[i]);
      if constexpr (kResidual) {
        __m256 lost = _mm256_sub_ps(x[i], _mm256_cvtph_ps(halfs[i]));
        if (__builtin_expect(special, 0)) lost = CanonicalV3(lost);
        StoreV3(source.new_residual + at, lost);
      }
    }
  }
  return steps * kStep;
}

}  // namespace

int64_t EncodeHalfsV3(const Source& source, int64_t n, Float16* wire) {
  if (!HasV3() || source.dtype != DType::kFloat32) return 0;
  return source.new_residual ? Encode<true>(source, n, wire) : Encode<false>(source, n, wire);
}

#else
int64_t EncodeHalfsV3(const Source&, int64_t, Float16*) { return 0; }
#endif

}  // namespace gradcomp
