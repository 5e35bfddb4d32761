// Packing of codes of few bits, which core/bits.h defines.

#ifndef GRADCOMP_CPU_BITS_H_
#define GRADCOMP_CPU_BITS_H_

#include <cstdint>

namespace gradcomp {

// Packs codes [0, n), of each its low `bits`. Buffers do not overlap, and may start at any byte.
void PackCodes(const uint8_t* codes, int64_t n, int bits, uint8_t* packed);

// Unpacks codes [0, n) of any PackedSize(n, bits) bytes.
void UnpackCodes(const uint8_t* packed, int64_t n, int bits, uint8_t* codes);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_BITS_H_
