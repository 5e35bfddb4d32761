// Codes of 1, 2, 4 or 8 bits: masks, and positions in small windows.
//
// Code i is in byte i * bits / 8, from bit i * bits % 8 up; what is left of the last byte is 0.

#ifndef GRADCOMP_CPU_BITS_H_
#define GRADCOMP_CPU_BITS_H_

#include <cstdint>

namespace gradcomp {

constexpr bool IsCodeWidth(int64_t bits) {
  return bits == 1 || bits == 2 || bits == 4 || bits == 8;
}

// Bytes of n codes.
constexpr int64_t PackedSize(int64_t n, int bits) {
  const int64_t in_byte = 8 / bits;
  return n / in_byte + (n % in_byte != 0);
}

// Packs codes [0, n), of each its low `bits`. Buffers do not overlap, and may start at any byte.
void PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed);

// Unpacks codes [0, n) of any PackedSize(n, bits) bytes.
void UnpackCodes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_BITS_H_
