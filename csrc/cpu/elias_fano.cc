#include "cpu/elias_fano.h"

#include <algorithm>
#include <cstring>

#include "core/elias_fano.h"

namespace gradcomp {
namespace {

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

void EncodeUpper(const uint32_t* positions, int64_t k, int low_bits, int64_t size, uint8_t* bytes) {
  std::memset(bytes, 0, static_cast<size_t>(size));
  for (int64_t i = 0; i < k; ++i) {
    const int64_t bit = i + (positions[i] >> low_bits);
    bytes[bit / 8] |= static_cast<uint8_t>(1 << (bit % 8));
  }
}

}  // namespace

void EliasFanoEncode(const uint32_t* positions, int64_t k, int64_t n, uint8_t* bytes) {
  const int low_bits = EliasFanoLowBits(n, k);
  const int64_t lower_size = EliasFanoLowerSize(n, k);
  EncodeLower(positions, k, low_bits, bytes);
  EncodeUpper(positions, k, low_bits, EliasFanoSize(n, k) - lower_size, bytes + lower_size);
}

EliasFanoReader::EliasFanoReader(const uint8_t* bytes, int64_t n, int64_t k)
    : lower_(bytes),
      upper_(bytes + EliasFanoLowerSize(n, k)),
      lower_size_(EliasFanoLowerSize(n, k)),
      upper_size_(EliasFanoSize(n, k) - lower_size_),
      low_bits_(EliasFanoLowBits(n, k)),
      n_(n),
      k_(k),
      word_(UpperWord(0)) {}

uint64_t EliasFanoReader::UpperWord(int64_t index) const {
  return LoadWord(upper_, upper_size_, index * 8);
}

bool EliasFanoReader::Read(int64_t count, uint32_t* positions) {
  const int64_t words = (upper_size_ + 7) / 8;
  int64_t low_bit = read_ * low_bits_;
  for (int64_t i = 0; i < count; ++i, low_bit += low_bits_) {
    while (word_ == 0) {
      if (++word_index_ >= words) return false;
      word_ = UpperWord(word_index_);
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

bool EliasFanoReader::IsPaddingZero() const {
  uint64_t excess = word_;
  for (int64_t index = word_index_ + 1; index * 8 < upper_size_; ++index) {
    excess |= UpperWord(index);
  }
  const int64_t low_bit = k_ * low_bits_;
  if (low_bit % 8 != 0) excess |= uint64_t{lower_[low_bit / 8]} >> (low_bit % 8);
  return excess == 0;
}

}  // namespace gradcomp
