// The sweep over dropout's masks: as kernel_sweep.cc over codecs.

#ifndef GRADCOMP_TESTS_NATIVE_DROPOUT_SWEEP_H_
#define GRADCOMP_TESTS_NATIVE_DROPOUT_SWEEP_H_

#include <cstdint>

#include "core/bits.h"
#include "cpu/dropout.h"
#include "support.h"

namespace gradcomp::test {

// Draws a mask for `numel` elements, whose counters pass the end of a word where they are many, and
// applies it to tensors of every dtype, in place too.
inline void SweepDropout(int64_t numel, Random* random, Digest* digest) {
  const int bits = static_cast<int>(1 + random->Below(23));
  const auto threshold = static_cast<uint32_t>(random->Below((int64_t{1} << bits) + 1));
  const MaskDraw draw = {
      random->Bits(), {uint64_t{0} - random->Bits() % 32, random->Bits()}, bits, threshold};
  const Buffer packed(PackedSize(numel, 1), random->Below(20));
  DrawMask(draw, numel, packed.data());
  digest->Add(packed);
  const float scale = Number(static_cast<int>(random->Below(kNumberKinds)), random);
  for (const DType dtype : kDTypes) {
    const Buffer x(numel * SizeOf(dtype), random->Below(20));
    const Buffer y(x.size(), random->Below(20));
    const int kind = static_cast<int>(random->Below(kNumberKinds));
    for (int64_t i = 0; i < numel; ++i) Store(x, dtype, i, Number(kind, random));
    const HostileFloatControl hostile;
    ApplyMask(dtype, x.data(), packed.data(), numel, scale, y.data());
    ApplyMask(dtype, x.data(), packed.data(), numel, scale, x.data());
    CHECK(x == y);
    digest->Add(y);
  }
}

}  // namespace gradcomp::test

#endif  // GRADCOMP_TESTS_NATIVE_DROPOUT_SWEEP_H_
