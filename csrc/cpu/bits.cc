#include "cpu/bits.h"

#include <algorithm>
#include <cstring>

#include "core/bits.h"
#include "core/macros.h"
#include "cpu/simd.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

template <int kBits>
GRADCOMP_INLINE void Pack(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict packed) {
  const int64_t whole = n / 8;
  for (int64_t i = 0; i < whole; ++i) {
    uint64_t eight;
    std::memcpy(&eight, codes + 8 * i, sizeof(eight));
    const PackedEight<kBits> word = PackEight<kBits>(eight);
    std::memcpy(packed + kBits * i, &word, sizeof(word));
  }
  uint64_t last = 0;
  std::memcpy(&last, codes + 8 * whole, n % 8);
  const PackedEight<kBits> word = PackEight<kBits>(last);
  std::memcpy(packed + kBits * whole, &word, PackedSize(n % 8, kBits));
}

template <int kBits>
GRADCOMP_INLINE void Unpack(const uint8_t* __restrict packed, int64_t n,
                            uint8_t* __restrict codes) {
  const int64_t whole = n / 8;
  for (int64_t i = 0; i < whole; ++i) {
    PackedEight<kBits> word;
    std::memcpy(&word, packed + kBits * i, sizeof(word));
    const uint64_t eight = UnpackEight<kBits>(word);
    std::memcpy(codes + 8 * i, &eight, sizeof(eight));
  }
  PackedEight<kBits> word = 0;
  std::memcpy(&word, packed + kBits * whole, PackedSize(n % 8, kBits));
  const uint64_t last = UnpackEight<kBits>(word);
  std::memcpy(codes + 8 * whole, &last, n % 8);
}

GRADCOMP_CLONES void PackRun(const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
  if (bits == 1) return Pack<1>(codes, n, packed);
  if (bits == 2) return Pack<2>(codes, n, packed);
  if (bits == 4) return Pack<4>(codes, n, packed);
  std::copy_n(codes, n, packed);
}

GRADCOMP_CLONES void UnpackRun(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  if (bits == 1) return Unpack<1>(packed, n, codes);
  if (bits == 2) return Unpack<2>(packed, n, codes);
  if (bits == 4) return Unpack<4>(packed, n, codes);
  std::copy_n(packed, n, codes);
}

// Calls run(first, count) for runs that begin at whole bytes of the packed codes.
template <typename Run>
void ForEachRun(int64_t n, const Run& run) {
  // A code is a byte: as many as kTaskElements floats have.
  constexpr int64_t kRun = kTaskElements * static_cast<int64_t>(sizeof(float));
  if (n <= kRun) return run(0, n);
  ParallelFor((n + kRun - 1) / kRun,
              [&](int64_t task) { run(task * kRun, std::min(kRun, n - task * kRun)); });
}

}  // namespace

void PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
  ForEachRun(n, [&](int64_t first, int64_t count) {
    PackRun(codes + first, count, bits, packed + first * bits / 8);
  });
}

void UnpackCodes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
  ForEachRun(n, [&](int64_t first, int64_t count) {
    UnpackRun(packed + first * bits / 8, count, bits, codes + first);
  });
}

}  // namespace gradcomp
