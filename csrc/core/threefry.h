// Counter-based random bits: Threefry4x32 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as
// easy as 1, 2, 3; SC 2011), and how elements of a tensor draw from it.

#ifndef GRADCOMP_CORE_THREEFRY_H_
#define GRADCOMP_CORE_THREEFRY_H_

#include <cstdint>

#include "core/float_bits.h"
#include "core/macros.h"

namespace gradcomp {

// Passes statistical batteries with 12 rounds; the paper's known answers are for 20.
constexpr int kThreefryRounds = 12;
// One draw of 16 counters, a vector of them, gives 16 random bits to each of 128 elements.
constexpr int kRandomLanes = 16;
constexpr int kRandomGroup = 128;

GRADCOMP_INLINE uint32_t RotateLeft(uint32_t x, int count) {
  return (x << count) | (x >> (32 - count));
}

template <int kRounds>
GRADCOMP_INLINE void Threefry4x32(const uint32_t (&key)[4], const uint32_t (&counter)[4],
                                  uint32_t (&out)[4]) {
  constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5},
                                    {6, 20},  {17, 11}, {25, 10}, {18, 20}};
  const uint32_t schedule[5] = {key[0], key[1], key[2], key[3],
                                0x1bd11bda ^ key[0] ^ key[1] ^ key[2] ^ key[3]};
  uint32_t x0 = counter[0] + key[0];
  uint32_t x1 = counter[1] + key[1];
  uint32_t x2 = counter[2] + key[2];
  uint32_t x3 = counter[3] + key[3];
  GRADCOMP_UNROLL(20)
  for (int round = 0; round < kRounds; ++round) {
    const int a = kRotations[round % 8][0];
    const int b = kRotations[round % 8][1];
    if (round % 2 == 0) {
      x0 += x1, x1 = RotateLeft(x1, a) ^ x0;
      x2 += x3, x3 = RotateLeft(x3, b) ^ x2;
    } else {
      x0 += x3, x3 = RotateLeft(x3, a) ^ x0;
      x2 += x1, x1 = RotateLeft(x1, b) ^ x2;
    }
    if (round % 4 == 3) {
      const int injection = round / 4 + 1;
      x0 += schedule[injection % 5];
      x1 += schedule[(injection + 1) % 5];
      x2 += schedule[(injection + 2) % 5];
      x3 += schedule[(injection + 3) % 5] + static_cast<uint32_t>(injection);
    }
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

// Key and part of the counter of the random bits; phase 0 is a rank's own payload, 1 the reduced.
struct Rng {
  uint64_t seed;
  uint64_t step;
  uint32_t rank;
  uint32_t phase;
};

// What tells the draws of one tensor from those of all others.
struct RandomStream {
  uint32_t key[4];      // seed and step, low words first
  uint32_t counter[2];  // the variable; the rank and phase
};

GRADCOMP_INLINE RandomStream StreamOf(const Rng& rng, uint32_t variable) {
  return {{static_cast<uint32_t>(rng.seed), static_cast<uint32_t>(rng.seed >> 32),
           static_cast<uint32_t>(rng.step), static_cast<uint32_t>(rng.step >> 32)},
          {variable, rng.rank * 2 + rng.phase}};
}

// 8 + u, u uniform in (0, 1) on 16 bits: the float's own bits, without a conversion.
GRADCOMP_INLINE float DitherFromBits(uint32_t random_shifted_by_4) {
  return FloatFromBits((random_shifted_by_4 & 0xffff0) | 0x41000008);
}

// The random words of counter `first` + `lane`; `first` is a multiple of the lanes.
GRADCOMP_INLINE void DrawLane(const RandomStream& stream, uint64_t first, int lane,
                              uint32_t (&random)[4]) {
  const uint32_t counter[4] = {static_cast<uint32_t>(first) + static_cast<uint32_t>(lane),
                               static_cast<uint32_t>(first >> 32), stream.counter[0],
                               stream.counter[1]};
  Threefry4x32<kThreefryRounds>(stream.key, counter, random);
}

// The dither of elements [128 * group, 128 * (group + 1)) of a tensor. Element 16 * slot + lane
// takes a half of word slot / 2 of its lane's counter.
GRADCOMP_INLINE void FillDither(const RandomStream& stream, int64_t group, float* dither) {
  const uint64_t first = static_cast<uint64_t>(group) * kRandomLanes;
  for (int lane = 0; lane < kRandomLanes; ++lane) {
    uint32_t random[4];
    DrawLane(stream, first, lane, random);
    for (int word = 0; word < 4; ++word) {
      dither[32 * word + lane] = DitherFromBits(random[word] << 4);
      dither[32 * word + 16 + lane] = DitherFromBits(random[word] >> 12);
    }
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_THREEFRY_H_
