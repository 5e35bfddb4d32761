// Exact selection among candidates in memory.

#ifndef GRADCOMP_CPU_SELECT_H_
#define GRADCOMP_CPU_SELECT_H_

#include <cstdint>

#include "cpu/candidates.h"

namespace gradcomp {

// Reduces candidates to the k of largest magnitude, ties to the lowest position, keeping their
// order; returns the k-th magnitude.
uint32_t KeepLargest(int64_t k, Candidates* candidates);

// Likewise of several, the positions of each above those of the one before it, to `kept`, which has
// room for k more and none of their memory. Clobbers `parts`.
uint32_t KeepLargest(Candidates* parts, int64_t num_parts, int64_t k, Candidates* kept);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SELECT_H_
