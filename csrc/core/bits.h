// Codes of 1, 2, 4 or 8 bits: masks, and positions in small windows.
//
// Code i is in byte i * bits / 8, from bit i * bits % 8 up; what is left of the last byte is 0.

#ifndef GRADCOMP_CORE_BITS_H_
#define GRADCOMP_CORE_BITS_H_

#include <cstdint>
#include <type_traits>

#include "core/macros.h"

namespace gradcomp {

constexpr bool IsCodeWidth(int64_t bits) {
  return bits == 1 || bits == 2 || bits == 4 || bits == 8;
}

// Bytes of n codes.
GRADCOMP_HOST_DEVICE constexpr int64_t PackedSize(int64_t n, int bits) {
  const int64_t in_byte = 8 / bits;
  return n / in_byte + (n % in_byte != 0);
}

// Eight codes of 1, 2 or 4 bits, packed.
template <int kBits>
using PackedEight =
    std::conditional_t<kBits == 1, uint8_t, std::conditional_t<kBits == 2, uint16_t, uint32_t>>;

// The low `bits` of every `of` bits of a word.
GRADCOMP_HOST_DEVICE constexpr uint64_t LowBitsOfEach(int of, int bits) {
  return ~uint64_t{0} / ((uint64_t{1} << of) - 1) * ((uint64_t{1} << bits) - 1);
}

// Packs the bytes of a word, the lowest first, of each its low kBits.
template <int kBits>
GRADCOMP_INLINE PackedEight<kBits> PackEight(uint64_t codes) {
  uint64_t word = codes & LowBitsOfEach(8, kBits);
  if constexpr (kBits == 1) {
    return static_cast<uint8_t>(word * 0x0102040810204080 >> 56);  // no two terms meet
  } else {  // into pairs, into fours, into one
    word = (word | word >> (8 - kBits)) & LowBitsOfEach(16, 2 * kBits);
    word = (word | word >> (16 - 2 * kBits)) & LowBitsOfEach(32, 4 * kBits);
    return static_cast<PackedEight<kBits>>(word | word >> (32 - 4 * kBits));
  }
}

// A code in each byte again.
template <int kBits>
GRADCOMP_INLINE uint64_t UnpackEight(PackedEight<kBits> packed) {
  if constexpr (kBits == 1) {
    // Byte j keeps bit j alone, which adding 127 lifts to the top bit.
    const uint64_t bits = packed * LowBitsOfEach(8, 1) & 0x8040201008040201;
    return (bits + LowBitsOfEach(8, 7)) >> 7 & LowBitsOfEach(8, 1);
  } else {
    uint64_t word = packed;
    word = (word | word << (32 - 4 * kBits)) & LowBitsOfEach(32, 4 * kBits);
    word = (word | word << (16 - 2 * kBits)) & LowBitsOfEach(16, 2 * kBits);
    return (word | word << (8 - kBits)) & LowBitsOfEach(8, kBits);
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CORE_BITS_H_
