#include "cpu/elias_fano.h"

#include <algorithm>
#include <cstring>

#include "core/codec.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

// Positions that one task encodes; a multiple of 8, so that tasks begin at a byte.
constexpr int64_t kPositionsTask = 1 << 14;

// Up to 8 bytes of `bytes` from `offset` as a little-endian word, zeros past `size`.
inline uint64_t LoadWord(const uint8_t* bytes, int64_t size, int64_t offset) {
  uint64_t word = 0;
  const int64_t available = size - offset;
  if (available >= 8) {
    std::memcpy(&word, bytes + offset, 8);
  } else if (available > 0) {
    std::memcpy(&word, bytes + offset, static_cast<size_t>(available));
  }
  return word;
}

inline uint64_t LowMask(int bits) { return (uint64_t{1} << bits) - 1; }

void EncodeLower(const uint32_t* positions, int64_t k, int low_bits, uint8_t* bytes) {
  if (low_bits == 0) return;
  uint64_t pending = 0;
  int filled = 0;
  for (int64_t i = 0; i < k; ++i) {
    pending |= (positions[i] & LowMask(low_bits)) << filled;
    filled += low_bits;
    if (filled >= 32) {
      const uint32_t word = static_cast<uint32_t>(pending);
      std::memcpy(bytes, &word, 4);
      bytes += 4;
      pending >>= 32;
      filled -= 32;
    }
  }
  std::memcpy(bytes, &pending, static_cast<size_t>((filled + 7) / 8));
}

// The first index from `i` on whose bit of the upper stream is in another byte than the one before.
int64_t NextByte(const uint32_t* positions, int64_t k, int low_bits, int64_t i) {
  const auto byte = [&](int64_t j) { return (j + (positions[j] >> low_bits)) / 8; };
  while (i > 0 && i < k && byte(i) == byte(i - 1)) ++i;
  return std::min(i, k);
}

// Sets the bits of positions [first, end).
void EncodeUpper(const uint32_t* positions, int64_t first, int64_t end, int low_bits,
                 uint8_t* bytes) {
  for (int64_t i = first; i < end; ++i) {
    const int64_t bit = i + (positions[i] >> low_bits);
    bytes[bit / 8] |= static_cast<uint8_t>(1 << (bit % 8));
  }
}

// The bit number `rank` of those that are zero, which there are more of.
int64_t SelectZero(uint64_t word, int64_t rank) {
  uint64_t zeros = ~word;
  for (; rank > 0; --rank) zeros &= zeros - 1;
  return __builtin_ctzll(zeros);
}

}  // namespace

void EliasFanoEncode(const uint32_t* positions, int64_t k, int64_t n, uint8_t* bytes) {
  const int low_bits = EliasFanoLowBits(n, k);
  uint8_t* const upper = bytes + EliasFanoLowerSize(n, k);
  std::fill(upper, bytes + EliasFanoSize(n, k), uint8_t{0});
  ParallelFor(CeilDiv(k, kPositionsTask), [&](int64_t task) {
    const int64_t first = task * kPositionsTask;
    const int64_t end = std::min(k, first + kPositionsTask);
    EncodeLower(positions + first, end - first, low_bits, bytes + first / 8 * low_bits);
    // Tasks write to no byte of one another.
    EncodeUpper(positions, NextByte(positions, k, low_bits, first),
                NextByte(positions, k, low_bits, end), low_bits, upper);
  });
}

bool EliasFanoFind(const uint8_t* bytes, int64_t n, int64_t k, int64_t stride, int64_t count,
                   EliasFanoPlace* places) {
  const int low_bits = EliasFanoLowBits(n, k);
  const int64_t lower_size = EliasFanoLowerSize(n, k);
  const int64_t upper_size = EliasFanoSize(n, k) - lower_size;
  const uint8_t* const upper = bytes + lower_size;
  int64_t ones = 0, found = 0;
  for (int64_t bit = 0; bit < upper_size * 8; bit += 64) {
    const uint64_t word = LoadWord(upper, upper_size, bit / 8);
    // A position has the upper bits that there are zeros before its one.
    const auto zeros_before = [&] { return found * stride >> low_bits; };
    for (; found < count && zeros_before() <= bit - ones + 64 - __builtin_popcountll(word);
         ++found) {
      const int64_t rank = zeros_before() - (bit - ones);  // zeros of this word before the place
      const int64_t at = rank == 0 ? 0 : SelectZero(word, rank - 1) + 1;
      const uint64_t before = at == 64 ? word : word & LowMask(static_cast<int>(at));
      places[found] = {bit + at, ones + __builtin_popcountll(before)};
    }
    ones += __builtin_popcountll(word);
  }
  for (; found <= count; ++found) places[found] = {upper_size * 8, ones};
  const int64_t low_bit = k * low_bits;
  const bool lower_ends = low_bit % 8 == 0 || bytes[low_bit / 8] >> (low_bit % 8) == 0;
  return ones == k && lower_ends;
}

EliasFanoReader::EliasFanoReader(const uint8_t* bytes, int64_t n, int64_t k,
                                 const EliasFanoPlace& begin, const EliasFanoPlace& end)
    : lower_(bytes),
      upper_(bytes + EliasFanoLowerSize(n, k)),
      lower_size_(EliasFanoLowerSize(n, k)),
      upper_size_(EliasFanoSize(n, k) - lower_size_),
      low_bits_(EliasFanoLowBits(n, k)),
      n_(n),
      end_(end.read),
      read_(begin.read),
      word_index_(begin.bit / 64),
      word_(LoadWord(upper_, upper_size_, word_index_ * 8)) {
  word_ &= ~LowMask(static_cast<int>(begin.bit % 64));
}

bool EliasFanoReader::Read(int64_t count, uint32_t* positions) {
  const int64_t words = (upper_size_ + 7) / 8;
  int64_t low_bit = read_ * low_bits_;
  for (int64_t i = 0; i < count; ++i, low_bit += low_bits_) {
    while (word_ == 0) {
      if (++word_index_ >= words) return false;
      word_ = LoadWord(upper_, upper_size_, word_index_ * 8);
    }
    const int64_t high = word_index_ * 64 + __builtin_ctzll(word_) - (read_ + i);
    word_ &= word_ - 1;
    const uint64_t low =
        LoadWord(lower_, lower_size_, low_bit / 8) >> (low_bit % 8) & LowMask(low_bits_);
    const int64_t position = high << low_bits_ | static_cast<int64_t>(low);
    if (position < next_ || position >= n_) return false;
    positions[i] = static_cast<uint32_t>(position);
    next_ = position + 1;
  }
  read_ += count;
  return true;
}

}  // namespace gradcomp
