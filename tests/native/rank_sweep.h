// The sweep over ranks of any part of many candidates: top-k mostly asks for most of them.

#ifndef GRADCOMP_TESTS_NATIVE_RANK_SWEEP_H_
#define GRADCOMP_TESTS_NATIVE_RANK_SWEEP_H_

#include <cstdint>
#include <vector>

#include "cpu/rank.h"
#include "support.h"

namespace gradcomp::test {

inline void SweepRank(Random* random, Digest* digest) {
  const int64_t num_parts = 1 + random->Below(3);
  std::vector<Buffer> buffers;
  std::vector<Candidates> parts;
  const int kind = static_cast<int>(random->Below(kNumberKinds));
  for (int64_t part = 0; part < num_parts; ++part) {
    const int64_t count = 10000 + random->Below(40000);
    buffers.emplace_back(count * 4, 4 * random->Below(16));
    parts.push_back({nullptr, buffers.back().floats(), count, count});
    for (int64_t i = 0; i < count; ++i) buffers.back().floats()[i] = Number(kind, random);
  }
  const int64_t total = Total(parts.data(), num_parts);
  const int64_t k = 1 + random->Below(total / (1 + 15 * random->Below(2)));
  const Rank rank = KthLargest(parts.data(), num_parts, k);
  int64_t larger = 0, equal = 0;
  for (const Candidates& part : parts) {
    for (int64_t i = 0; i < part.count; ++i) {
      larger += Magnitude(part.values[i]) > rank.magnitude;
      equal += Magnitude(part.values[i]) == rank.magnitude;
    }
  }
  CHECK(rank.larger == larger && larger < k && k <= larger + equal);
  digest->Add(rank.magnitude);
}

}  // namespace gradcomp::test

#endif  // GRADCOMP_TESTS_NATIVE_RANK_SWEEP_H_
