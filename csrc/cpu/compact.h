// The step of top-k that looks at every element.

#ifndef GRADCOMP_CPU_COMPACT_H_
#define GRADCOMP_CPU_COMPACT_H_

#include <cstdint>

namespace gradcomp {

// Appends base + i and x[i] for every i in [0, n) with Magnitude(x[i]) >= threshold, in order, to
// `positions` and `values`, which have room for n; returns how many. `x` has no NaN but kNanBits.
int64_t Compact(const float* x, int64_t n, uint32_t threshold, uint32_t base, uint32_t* positions,
                float* values);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_COMPACT_H_
