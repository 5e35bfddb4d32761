#include "cpu/bits.h"

#include <algorithm>
#include <cstring>

#include "core/macros.h"
#include "cpu/simd.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

// Bit j of a byte to the lowest bit of byte j, and back. No two terms of the products meet.
constexpr uint64_t kLowBits = 0x0101010101010101;
constexpr uint64_t kDiagonal = 0x8040201008040201;
constexpr uint64_t kGather = 0x0102040810204080;

GRADCOMP_INLINE uint8_t ByteOfMask(const uint8_t* mask) {
  uint64_t bytes;
  std::memcpy(&bytes, mask, sizeof(bytes));
  return static_cast<uint8_t>((bytes & kLowBits) * kGather >> 56);
}

GRADCOMP_INLINE void MaskOfByte(uint8_t byte, uint8_t* mask) {
  // Byte j holds bit j alone, which adding 127 lifts to the top bit.
  const uint64_t bits = byte * kLowBits & kDiagonal;
  const uint64_t bytes = (bits + 127 * kLowBits) >> 7 & kLowBits;
  std::memcpy(mask, &bytes, sizeof(bytes));
}

template <int kBits>
GRADCOMP_INLINE uint8_t ByteOfCodes(const uint8_t* codes, int64_t count) {
  uint32_t byte = 0;
  for (int64_t j = 0; j < count; ++j) byte |= (codes[j] & ((1u << kBits) - 1)) << (j * kBits);
  return static_cast<uint8_t>(byte);
}

template <int kBits>
GRADCOMP_INLINE void CodesOfByte(uint8_t byte, int64_t count, uint8_t* codes) {
  for (int64_t j = 0; j < count; ++j) codes[j] = byte >> (j * kBits) & ((1u << kBits) - 1);
}

template <int kBits>
GRADCOMP_INLINE void Pack(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict packed) {
  constexpr int64_t kInByte = 8 / kBits;
  const int64_t whole = n / kInByte;
  for (int64_t i = 0; i < whole; ++i) {
    if constexpr (kBits == 1) {
      packed[i] = ByteOfMask(codes + i * kInByte);
    } else {
      packed[i] = ByteOfCodes<kBits>(codes + i * kInByte, kInByte);
    }
  }
  const int64_t left = n - whole * kInByte;
  if (left > 0) packed[whole] = ByteOfCodes<kBits>(codes + whole * kInByte, left);
}

template <int kBits>
GRADCOMP_INLINE void Unpack(const uint8_t* __restrict packed, int64_t n,
                            uint8_t* __restrict codes) {
  constexpr int64_t kInByte = 8 / kBits;
  const int64_t whole = n / kInByte;
  for (int64_t i = 0; i < whole; ++i) {
    if constexpr (kBits == 1) {
      MaskOfByte(packed[i], codes + i * kInByte);
    } else {
      CodesOfByte<kBits>(packed[i], kInByte, codes + i * kInByte);
    }
  }
  const int64_t left = n - whole * kInByte;
  if (left > 0) CodesOfByte<kBits>(packed[whole], left, codes + whole * kInByte);
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
