// Exact selection among candidates in memory.

#ifndef GRADCOMP_CPU_SELECT_H_
#define GRADCOMP_CPU_SELECT_H_

#include <cstdint>

namespace gradcomp {

// The k-th largest of n magnitudes, 1 <= k <= n, and how many are larger.
struct Rank {
  uint32_t magnitude;
  int64_t larger;
};
Rank KthLargest(const float* x, int64_t n, int64_t k);

// Reduces n candidates, in order of position, to the k of largest magnitude, ties to the lowest
// position, keeping their order; returns the k-th magnitude.
uint32_t KeepLargest(int64_t n, int64_t k, uint32_t* positions, float* values);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SELECT_H_
