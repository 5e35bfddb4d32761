// The elements of a tensor that may be among its largest, in one or several parts.

#ifndef GRADCOMP_CPU_CANDIDATES_H_
#define GRADCOMP_CPU_CANDIDATES_H_

#include <cstdint>

#include "cpu/threads.h"

namespace gradcomp {

// How many may be written after the last that is there.
constexpr int kSlack = 16;
// Candidates from which on it pays to look at them on several threads.
constexpr int64_t kWorthSharing = 1 << 14;

// Elements in order of position; `capacity`, and kSlack more, is what there is room for.
struct Candidates {
  uint32_t* positions;
  float* values;
  int64_t capacity;
  int64_t count;
};

inline int64_t Total(const Candidates* parts, int64_t num_parts) {
  int64_t total = 0;
  for (int64_t part = 0; part < num_parts; ++part) total += parts[part].count;
  return total;
}

// Calls work(part) for each, on several threads if there is much to do.
template <typename Work>
void ForEachPart(const Candidates* parts, int64_t num_parts, const Work& work) {
  if (Total(parts, num_parts) > kWorthSharing) return ParallelFor(num_parts, work);
  for (int64_t part = 0; part < num_parts; ++part) work(part);
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_CANDIDATES_H_
