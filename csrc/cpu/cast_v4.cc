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

template <bool kResidual>
GRADCOMP_V4 int64_t Encode(const Source& source, int64_t n, Float16* wire) {
  constexpr int64_t kStep = kAtOnce * kLanes;
  int64_t first = 0;
  for (; first + kStep <= n; first += kStep) {
    __m512 x[kAtOnce];
    __m256i halfs[kAtOnce];
    int not_finite = 0;
    GRADCOMP_UNROLL(4)
    for (int i = 0; i < kAtOnce; ++i) {
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
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(wire + at), halfs[i]);
      if constexpr (kResidual) {
        __m512 lost = _mm512_sub_ps(x[i], _mm512_cvtph_ps(halfs[i]));
        if (__builtin_expect(not_finite != 0, 0)) lost = CanonicalV4(lost);
        _mm512_storeu_ps(source.new_residual + at, lost);
      }
    }
  }
  return first;
}

}  // namespace

int64_t EncodeHalfsV4(const Source& source, int64_t n, Float16* wire) {
  if (!HasV4() || source.dtype != DType::kFloat32) return 0;
  return source.new_residual ? Encode<true>(source, n, wire) : Encode<false>(source, n, wire);
}

#else
int64_t EncodeHalfsV4(const Source&, int64_t, Float16*) { return 0; }
#endif

}  // namespace gradcomp
