// The positions of kept values as an Elias–Fano code: [lower bits][upper bits].

#ifndef GRADCOMP_CPU_ELIAS_FANO_H_
#define GRADCOMP_CPU_ELIAS_FANO_H_

#include <cstdint>

namespace gradcomp {

// Writes the EliasFanoSize(n, k) bytes of k increasing positions below n, 1 <= k <= n < 2^32.
void EliasFanoEncode(const uint32_t* positions, int64_t k, int64_t n, uint8_t* bytes);

// Reads them back in order, from bytes that need not be an encoder's.
class EliasFanoReader {
 public:
  EliasFanoReader() = default;
  EliasFanoReader(const uint8_t* bytes, int64_t n, int64_t k);

  // Reads the next `count` positions, count <= remaining(); false if one of them is missing, not
  // below n or not above the one before it.
  bool Read(int64_t count, uint32_t* positions);
  int64_t remaining() const { return k_ - read_; }

  // After the last position: whether all bits that no position needs are zero.
  bool IsPaddingZero() const;

 private:
  uint64_t UpperWord(int64_t index) const;

  const uint8_t* lower_ = nullptr;
  const uint8_t* upper_ = nullptr;
  int64_t lower_size_ = 0;
  int64_t upper_size_ = 0;
  int low_bits_ = 0;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t read_ = 0;        // positions read so far
  int64_t next_ = 0;        // the smallest position that may follow
  int64_t word_index_ = 0;  // of the upper stream in words of 64 bits, the last one maybe cut short
  uint64_t word_ = 0;       // what is left of it
};

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_ELIAS_FANO_H_
