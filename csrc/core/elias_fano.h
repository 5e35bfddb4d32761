// Sizes of the Elias–Fano code of k increasing positions below n: about 2 + log2(n/k) bits each.
//
// Position i is split: its `low_bits` low bits go verbatim into the lower stream, and bit
// i + (position >> low_bits) of the upper stream is set. Source: Elias 1974, Fano 1971.

#ifndef GRADCOMP_CORE_ELIAS_FANO_H_
#define GRADCOMP_CORE_ELIAS_FANO_H_

#include <cstdint>

#include "core/macros.h"

namespace gradcomp {

// All of them need 1 <= k <= n.
GRADCOMP_HOST_DEVICE constexpr int EliasFanoLowBits(int64_t n, int64_t k) {
  int bits = 0;
  for (int64_t ratio = n / k; ratio > 1; ratio >>= 1) ++bits;
  return bits;
}

GRADCOMP_HOST_DEVICE constexpr int64_t EliasFanoLowerSize(int64_t n, int64_t k) {
  return (k * EliasFanoLowBits(n, k) + 7) / 8;
}

GRADCOMP_HOST_DEVICE constexpr int64_t EliasFanoUpperBits(int64_t n, int64_t k) {
  return k + ((n - 1) >> EliasFanoLowBits(n, k));
}

GRADCOMP_HOST_DEVICE constexpr int64_t EliasFanoSize(int64_t n, int64_t k) {
  return EliasFanoLowerSize(n, k) + (EliasFanoUpperBits(n, k) + 7) / 8;
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_ELIAS_FANO_H_
