// AVX-512 on any processor with AVX2, for tests: SIMDe's translations of the intrinsics to shorter
// vectors and, from their definitions, those that SIMDe 0.7.4 lacks or gets wrong. An intrinsic
// that neither has does not compile.

#ifndef GRADCOMP_TESTS_NATIVE_EMULATED_V4_H_
#define GRADCOMP_TESTS_NATIVE_EMULATED_V4_H_

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace gradcomp::emulated_v4 {

constexpr int kLanes = 16;

using Floats = float __attribute__((vector_size(64)));
using Int32s = int32_t __attribute__((vector_size(64)));
using Uint16s = uint16_t __attribute__((vector_size(32)));
using Uint8s = uint8_t __attribute__((vector_size(16)));
using Int8s = int8_t __attribute__((vector_size(16)));

// The mask of the lanes for which is_set(lane).
template <typename IsSet>
inline __mmask16 MaskOf(const IsSet& is_set) {
  int mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= (is_set(i) ? 1 : 0) << i;
  return static_cast<__mmask16>(mask);
}

inline __mmask16 CmpltEpi32Mask(__m512i a, __m512i b) {
  const Int32s x = (Int32s)a, y = (Int32s)b;
  return MaskOf([&](int i) { return x[i] < y[i]; });
}

inline __mmask16 MaskCmpgeEpi32Mask(__mmask16 mask, __m512i a, __m512i b) {
  return static_cast<__mmask16>(mask & ~CmpltEpi32Mask(a, b));
}

inline __mmask16 CmpeqEpi16Mask(__m256i a, __m256i b) {
  const Uint16s x = (Uint16s)a, y = (Uint16s)b;
  return MaskOf([&](int i) { return x[i] == y[i]; });
}

inline __m512 CvtEpi32Ps(__m512i a) { return __builtin_convertvector((Int32s)a, Floats); }
inline __m512i CvtEpi8Epi32(__m128i a) {
  return (__m512i) __builtin_convertvector((Int8s)a, Int32s);
}
inline __m512i CvtEpu8Epi32(__m128i a) {
  return (__m512i) __builtin_convertvector((Uint8s)a, Int32s);
}
inline __m128i CvtEpi32Epi8(__m512i a) {
  return (__m128i) __builtin_convertvector((Int32s)a, Uint8s);
}

inline __m512 CvtPhPs(__m256i a) {
  const Uint16s halfs = (Uint16s)a;
  Floats x = {};
  for (int i = 0; i < kLanes; ++i) x[i] = _cvtsh_ss(halfs[i]);
  return x;
}

template <int kRounding>
inline __m256i CvtPsPh(__m512 a) {
  const Floats x = a;
  Uint16s halfs = {};
  for (int i = 0; i < kLanes; ++i) halfs[i] = _cvtss_sh(x[i], kRounding);
  return (__m256i)halfs;
}

inline __m512i SraiEpi32(__m512i a, int bits) { return (__m512i)((Int32s)a >> bits); }

inline int32_t ReduceMaxEpi32(__m512i a) {
  const Int32s x = (Int32s)a;
  int32_t largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = std::max<int32_t>(largest, x[i]);
  return largest;
}

// Touches no memory of lanes that are not in the mask.
template <typename Lanes>
inline Lanes MaskzLoad(__mmask16 mask, const void* from) {
  Lanes x = {};
  for (int i = 0; i < kLanes; ++i) {
    if ((mask >> i & 1) == 0) continue;
    auto lane = x[i];
    std::memcpy(&lane, static_cast<const uint8_t*>(from) + i * sizeof(lane), sizeof(lane));
    x[i] = lane;
  }
  return x;
}

// Adds while the processor rounds as the constant says; flags that this raises are dropped.
template <int kRounding>
inline __m512 AddRound(__m512 a, __m512 b) {
  static_assert((kRounding & _MM_FROUND_NO_EXC) != 0);
  constexpr unsigned kMode = (kRounding & 3) << 13;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr((saved & ~unsigned{_MM_ROUND_MASK}) | kMode);
  Floats sums = {};
  for (int i = 0; i < kLanes; ++i) {
    // Volatile, so that it is added now.
    const volatile float x = Floats(a)[i], y = Floats(b)[i];
    const volatile float sum = x + y;
    sums[i] = sum;
  }
  _mm_setcsr(saved);
  return sums;
}

}  // namespace gradcomp::emulated_v4

// clang-format off
#undef _mm256_cmpeq_epi16_mask
#define _mm256_cmpeq_epi16_mask(a, b) gradcomp::emulated_v4::CmpeqEpi16Mask(a, b)
#undef _mm512_add_round_ps
#define _mm512_add_round_ps(a, b, rounding) gradcomp::emulated_v4::AddRound<(rounding)>(a, b)
#undef _mm512_cmplt_epi32_mask
#define _mm512_cmplt_epi32_mask(a, b) gradcomp::emulated_v4::CmpltEpi32Mask(a, b)
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(a) gradcomp::emulated_v4::CvtEpi32Epi8(a)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) gradcomp::emulated_v4::CvtEpi32Ps(a)
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(a) gradcomp::emulated_v4::CvtEpi8Epi32(a)
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(a) gradcomp::emulated_v4::CvtEpu8Epi32(a)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) gradcomp::emulated_v4::CvtPhPs(a)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, rounding) gradcomp::emulated_v4::CvtPsPh<(rounding)>(a)
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32(mask, from) ((__m512i)gradcomp::emulated_v4::MaskzLoad<gradcomp::emulated_v4::Int32s>(mask, from))
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, from) gradcomp::emulated_v4::MaskzLoad<gradcomp::emulated_v4::Floats>(mask, from)
#undef _mm512_reduce_max_epi32
#define _mm512_reduce_max_epi32(a) gradcomp::emulated_v4::ReduceMaxEpi32(a)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, bits) gradcomp::emulated_v4::SraiEpi32(a, bits)
// SIMDe's macro has four parameters.
#undef _mm512_mask_cmpge_epi32_mask
#define _mm512_mask_cmpge_epi32_mask(mask, a, b) gradcomp::emulated_v4::MaskCmpgeEpi32Mask(mask, a, b)
// clang-format on

#endif  // GRADCOMP_TESTS_NATIVE_EMULATED_V4_H_
