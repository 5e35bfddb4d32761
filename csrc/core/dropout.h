// Dropout by counter-based random bits: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random
// numbers: as easy as 1, 2, 3; SC 2011), and the elements that TensorFlow's stateless dropout
// keeps.

#ifndef GRADCOMP_CORE_DROPOUT_H_
#define GRADCOMP_CORE_DROPOUT_H_

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

GRADCOMP_INLINE void Philox4x32(const uint32_t (&key)[2], const uint32_t (&counter)[4],
                                uint32_t (&out)[4]) {
  uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  GRADCOMP_UNROLL(10)
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * x0;
    const uint64_t b = uint64_t{0xcd9e8d57} * x2;
    x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ k0;
    x1 = static_cast<uint32_t>(b);
    x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ k1;
    x3 = static_cast<uint32_t>(a);
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

// Which elements a tensor keeps. Element i has word i % 4 of the counter that is i / 4 after
// `counter`, and is kept where the low `fraction_bits` of it are `threshold` or more: a uniform
// number of that many bits in [0, 1), as StatelessRandomUniformV2 makes it, is the rate or more.
struct MaskDraw {
  uint64_t key;
  uint64_t counter[2];    // low word first
  int32_t fraction_bits;  // 23 for float32, 10 for float16, 7 for bfloat16
  uint32_t threshold;     // rate · 2^fraction_bits, rounded up
};

// Whether a MaskDraw may have these.
constexpr bool IsMaskDraw(int64_t fraction_bits, int64_t threshold) {
  return fraction_bits >= 1 && fraction_bits <= 23 && threshold >= 0 &&
         threshold <= int64_t{1} << fraction_bits;
}

// Bit w is set if element 4 * group + w is kept.
GRADCOMP_INLINE uint32_t KeptOfFour(const MaskDraw& draw, uint64_t group) {
  const uint64_t low = draw.counter[0] + group;
  const uint64_t high = draw.counter[1] + (low < group ? 1 : 0);
  const uint32_t key[2] = {static_cast<uint32_t>(draw.key), static_cast<uint32_t>(draw.key >> 32)};
  const uint32_t counter[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                               static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  uint32_t random[4];
  Philox4x32(key, counter, random);
  const uint32_t fraction = (uint32_t{1} << draw.fraction_bits) - 1;
  uint32_t kept = 0;
  GRADCOMP_UNROLL(4)
  for (int w = 0; w < 4; ++w) {
    kept |= static_cast<uint32_t>((random[w] & fraction) >= draw.threshold) << w;
  }
  return kept;
}

// What becomes of an element: scaled if it is kept, else 0 whatever it was.
GRADCOMP_INLINE float MaskedFloat(float x, bool kept, float scale) {
  return kept ? Canonical(x * scale) : 0.0f;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_DROPOUT_H_
