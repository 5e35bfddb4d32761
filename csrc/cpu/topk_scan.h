// Top-k's pass over memory.

#ifndef GRADCOMP_CPU_TOPK_SCAN_H_
#define GRADCOMP_CPU_TOPK_SCAN_H_

#include <cstdint>

#include "cpu/candidates.h"
#include "cpu/tile.h"

namespace gradcomp {

// Elements scanned at a time: one word of mask bits.
constexpr int64_t kScan = 64;

// Corrects elements [first, first + n) into the new residual, and appends those that reach the
// threshold to the candidates, which have room for n + kSlack more. `few` tells that about one in
// kScan does, or less; whatever it is, the result is the same.
void Scan(const Source& source, int64_t first, int64_t n, uint32_t threshold, bool few,
          Candidates* candidates);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_TOPK_SCAN_H_
