#include "cpu/elias_fano.h"

#include <algorithm>
#include <cstring>

#include "core/codec.h"
#include "cpu/simd.h"
#include "cpu/threads.h"

namespace gradcomp {
namespace {

// Positions that one task encodes; a multiple of 8, so that tasks begin at a byte.
constexpr int64_t kPositionsTask = 1 << 14;
// Positions whose lower bits fill whole bytes, and the most bits of each that fit in one word.
constexpr int64_t kGroup = 8;
constexpr int kGroupedBits = 8;
// Positions read at a time.
constexpr int64_t kUnrolled = 4;
constexpr uint64_t kLastBit = uint64_t{1} << 63;  // for the count of trailing zeros to be defined

GRADCOMP_INLINE uint64_t LowMask(int bits) { return (uint64_t{1} << bits) - 1; }

// Up to 8 bytes of `bytes` from `offset` as a little-endian word, zeros past `size`.
GRADCOMP_INLINE uint64_t LoadWord(const uint8_t* bytes, int64_t size, int64_t offset) {
  uint64_t word = 0;
  const int64_t available = size - offset;
  if (available >= 8) {
    std::memcpy(&word, bytes + offset, 8);
  } else if (available > 0) {
    std::memcpy(&word, bytes + offset, static_cast<size_t>(available));
  }
  return word;
}

GRADCOMP_INLINE void StoreWord(uint64_t word, int64_t size, int64_t offset, uint8_t* bytes) {
  if (size - offset >= 8) {
    std::memcpy(bytes + offset, &word, 8);
  } else {
    std::memcpy(bytes + offset, &word, static_cast<size_t>(size - offset));
  }
}

GRADCOMP_CLONES void EncodeLower(const uint32_t* positions, int64_t k, int low_bits,
                                 uint8_t* bytes) {
  if (low_bits == 0) return;
  int64_t i = 0;
  if (low_bits <= kGroupedBits) {
    // Writes whole words while there are 8 bytes: those past a group are the next group's.
    for (; (k - i) * low_bits >= 64; i += kGroup, bytes += low_bits) {
      uint64_t word = 0;
      for (int j = 0; j < kGroup; ++j) {
        word |= (positions[i + j] & LowMask(low_bits)) << (j * low_bits);
      }
      std::memcpy(bytes, &word, 8);
    }
  }
  uint64_t pending = 0;
  int filled = 0;
  for (; i < k; ++i) {
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

// The first index from `i` on whose bit of the upper stream is in another word than the one before.
int64_t NextWord(const uint32_t* positions, int64_t k, int low_bits, int64_t i) {
  const auto word = [&](int64_t j) { return (j + (positions[j] >> low_bits)) / 64; };
  while (i > 0 && i < k && word(i) == word(i - 1)) ++i;
  return std::min(i, k);
}

// Sets the bits of positions [first, end) in a stream of `size` bytes; writes every word that has
// one of them.
GRADCOMP_CLONES void EncodeUpper(const uint32_t* positions, int64_t first, int64_t end,
                                 int low_bits, int64_t size, uint8_t* bytes) {
  const auto word_of = [&](int64_t i) { return (i + (positions[i] >> low_bits)) >> 6; };
  int64_t whole = end;  // the bits before it are in words of 8 bytes
  while (whole > first && word_of(whole - 1) * 8 + 8 > size) --whole;
  int64_t index = -1;
  uint64_t word = 0;
  // A word is written anew for each of its bits: a branch where it ends costs more.
  const auto add = [&](int64_t i) {
    const int64_t last = index;
    index = word_of(i);
    word = (index == last ? word : 0) | uint64_t{1} << ((i + (positions[i] >> low_bits)) & 63);
  };
  for (int64_t i = first; i < whole; ++i) {
    add(i);
    std::memcpy(bytes + index * 8, &word, 8);
  }
  for (int64_t i = whole; i < end; ++i) {
    add(i);
    StoreWord(word, size, index * 8, bytes);
  }
}

// The upper parts of `count` positions, before which there are `read`, from what is left of a word
// on; false if one is missing.
GRADCOMP_CLONES bool ReadUpper(const uint8_t* bytes, int64_t size, int64_t read, int64_t count,
                               int64_t* word_index, uint64_t* word_left, uint32_t* high) {
  int64_t index = *word_index;
  uint64_t word = *word_left;
  int64_t i = 0;
  while (i < count) {
    while (word == 0) {
      if (++index * 8 >= size) return false;
      word = LoadWord(bytes, size, index * 8);
    }
    // As many zeros as bits before it that are not positions'. Several at a time, be they there or
    // not, while there is room: a branch for each costs more.
    const int64_t zeros = index * 64 - read;
    const int64_t end = i + __builtin_popcountll(word);
    while (i < end && i + kUnrolled <= count) {
      for (int64_t j = i; j < i + kUnrolled; ++j) {
        high[j] = static_cast<uint32_t>(zeros - j + __builtin_ctzll(word | kLastBit));
        word &= word - 1;
      }
      i += kUnrolled;
    }
    if (i > end) i = end;
    for (; i < end && i < count; ++i) {
      high[i] = static_cast<uint32_t>(zeros - i + __builtin_ctzll(word));
      word &= word - 1;
    }
  }
  *word_index = index;
  *word_left = word;
  return true;
}

// Puts the lower bits of `count` positions, before which there are `read`, under the upper parts.
GRADCOMP_CLONES void AddLower(const uint8_t* bytes, int64_t size, int low_bits, int64_t read,
                              int64_t count, uint32_t* positions) {
  const uint64_t mask = LowMask(low_bits);
  int64_t bit = read * low_bits;
  int64_t i = 0;
  // A group's bits, wherever in a byte they begin, are in one word.
  if (low_bits < kGroupedBits) {
    for (; i + kGroup <= count && bit / 8 + 8 <= size; i += kGroup, bit += kGroup * low_bits) {
      uint64_t word;
      std::memcpy(&word, bytes + bit / 8, 8);
      word >>= bit % 8;
      for (int j = 0; j < kGroup; ++j) {
        const uint32_t low = static_cast<uint32_t>(word >> (j * low_bits) & mask);
        positions[i + j] = positions[i + j] << low_bits | low;
      }
    }
  }
  for (; i < count; ++i, bit += low_bits) {
    const uint64_t word = LoadWord(bytes, size, bit / 8);
    positions[i] = positions[i] << low_bits | static_cast<uint32_t>(word >> (bit % 8) & mask);
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
  const int64_t upper_size = EliasFanoSize(n, k) - EliasFanoLowerSize(n, k);
  std::fill_n(upper, upper_size, uint8_t{0});
  ParallelFor(CeilDiv(k, kPositionsTask), [&](int64_t task) {
    const int64_t first = task * kPositionsTask;
    const int64_t end = std::min(k, first + kPositionsTask);
    EncodeLower(positions + first, end - first, low_bits, bytes + first / 8 * low_bits);
    // Tasks write to no word of one another.
    EncodeUpper(positions, NextWord(positions, k, low_bits, first),
                NextWord(positions, k, low_bits, end), low_bits, upper_size, upper);
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
  if (count == 0) return true;
  if (!ReadUpper(upper_, upper_size_, read_, count, &word_index_, &word_, positions)) {
    return false;
  }
  // Upper parts never fall, so the last is the largest; with this bound no shift loses bits.
  if (positions[count - 1] > static_cast<uint64_t>(n_ - 1) >> low_bits_) return false;
  AddLower(lower_, lower_size_, low_bits_, read_, count, positions);
  bool rising = positions[0] >= next_;
  for (int64_t i = 1; i < count; ++i) rising &= positions[i] > positions[i - 1];
  if (!rising || positions[count - 1] >= n_) return false;
  next_ = int64_t{positions[count - 1]} + 1;
  read_ += count;
  return true;
}

}  // namespace gradcomp
