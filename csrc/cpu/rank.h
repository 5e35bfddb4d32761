// Which magnitude is the k-th largest of candidates.

#ifndef GRADCOMP_CPU_RANK_H_
#define GRADCOMP_CPU_RANK_H_

#include <cstdint>

#include "cpu/candidates.h"

namespace gradcomp {

// A magnitude, and how many are larger.
struct Rank {
  uint32_t magnitude;
  int64_t larger;
};

// The k-th largest of all of `parts`, of which positions are not looked at; 1 <= k <= their
// elements.
Rank KthLargest(const Candidates* parts, int64_t num_parts, int64_t k);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_RANK_H_
