#include "cpu/dropout.h"

#include <algorithm>
#include <cstring>

#include "core/bits.h"
#include "core/float_bits.h"
#include "core/macros.h"
#include "cpu/elements.h"
#include "cpu/float_control.h"
#include "cpu/simd.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

constexpr int kLanes = 16;          // counters of a vector
constexpr int kGroup = 4 * kLanes;  // the elements that they draw for
constexpr int kGroupBytes = kGroup / 8;

GRADCOMP_INLINE void DrawGroup(const MaskDraw& draw, uint64_t group, uint8_t* packed) {
  uint32_t fours[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    fours[lane] = KeptOfFour(draw, group * kLanes + static_cast<uint64_t>(lane));
  }
  for (int i = 0; i < kGroupBytes; ++i) {
    packed[i] = static_cast<uint8_t>(fours[2 * i] | fours[2 * i + 1] << 4);
  }
}

// Bits of `n` elements from that of `first`, a multiple of kGroup.
GRADCOMP_CLONES void DrawRun(const MaskDraw& draw, int64_t first, int64_t n, uint8_t* packed) {
  const auto group = static_cast<uint64_t>(first / kGroup);
  const int64_t whole = n / kGroup;
  for (int64_t i = 0; i < whole; ++i) {
    DrawGroup(draw, group + static_cast<uint64_t>(i), packed + kGroupBytes * i);
  }
  const int64_t left = n % kGroup;
  if (left == 0) return;
  uint8_t last[kGroupBytes];
  DrawGroup(draw, group + static_cast<uint64_t>(whole), last);
  const int64_t bytes = PackedSize(left, 1);
  if (left % 8 != 0) last[bytes - 1] &= static_cast<uint8_t>((1 << left % 8) - 1);
  std::memcpy(packed + kGroupBytes * whole, last, static_cast<size_t>(bytes));
}

GRADCOMP_INLINE void Narrow(float x, Float32* y) { y->value = x; }
GRADCOMP_INLINE void Narrow(float x, Float16* y) { y->bits = HalfFromFloat(x); }
GRADCOMP_INLINE void Narrow(float x, BFloat16* y) { y->bits = BFloat16FromFloat(x); }

// A table, as not all instruction sets shift each element by a number of its own.
constexpr uint32_t kBit[16] = {1u << 0,  1u << 1,  1u << 2,  1u << 3, 1u << 4,  1u << 5,
                               1u << 6,  1u << 7,  1u << 8,  1u << 9, 1u << 10, 1u << 11,
                               1u << 12, 1u << 13, 1u << 14, 1u << 15};

template <class Element>
GRADCOMP_INLINE void ApplyWord(const Element* x, uint32_t word, float scale, Element* y) {
  float made[16];  // all are read before one is written: y may be x
  for (int j = 0; j < 16; ++j) {
    made[j] = MaskedFloat(Widen(x[j]), (word & kBit[j]) != 0, scale);
  }
  for (int j = 0; j < 16; ++j) Narrow(made[j], &y[j]);
}

template <class Element>
GRADCOMP_INLINE void Apply(const Element* x, const uint8_t* packed, int64_t n, float scale,
                           Element* y) {
  const int64_t whole = n / 16;
  for (int64_t i = 0; i < whole; ++i) {
    ApplyWord(x + 16 * i, packed[2 * i] | static_cast<uint32_t>(packed[2 * i + 1]) << 8, scale,
              y + 16 * i);
  }
  for (int64_t i = 16 * whole; i < n; ++i) {
    Narrow(MaskedFloat(Widen(x[i]), packed[i / 8] >> (i % 8) & 1, scale), &y[i]);
  }
}

GRADCOMP_CLONES void ApplyRun(DType dtype, const void* x, const uint8_t* packed, int64_t first,
                              int64_t n, float scale, void* y) {
  packed += first / 8;
  if (dtype == DType::kFloat32) {
    Apply(static_cast<const Float32*>(x) + first, packed, n, scale,
          static_cast<Float32*>(y) + first);
  } else if (dtype == DType::kFloat16) {
    Apply(static_cast<const Float16*>(x) + first, packed, n, scale,
          static_cast<Float16*>(y) + first);
  } else {
    Apply(static_cast<const BFloat16*>(x) + first, packed, n, scale,
          static_cast<BFloat16*>(y) + first);
  }
}

// Calls run(first, count) for runs of all elements, that begin at multiples of kGroup.
template <typename Run>
void ForEachRun(int64_t n, const Run& run) {
  static_assert(kTaskElements % kGroup == 0);
  if (n <= kTaskElements) return run(0, n);
  ParallelFor((n + kTaskElements - 1) / kTaskElements, [&](int64_t task) {
    const int64_t first = task * kTaskElements;
    run(first, std::min(kTaskElements, n - first));
  });
}

}  // namespace

void DrawMask(const MaskDraw& draw, int64_t n, uint8_t* packed) {
  ForEachRun(
      n, [&](int64_t first, int64_t count) { DrawRun(draw, first, count, packed + first / 8); });
}

void ApplyMask(DType dtype, const void* x, const uint8_t* packed, int64_t n, float scale, void* y) {
  const DefaultFloatControl float_control;
  ForEachRun(
      n, [&](int64_t first, int64_t count) { ApplyRun(dtype, x, packed, first, count, scale, y); });
}

}  // namespace gradcomp
