// The positions of kept values as an Elias–Fano code: [lower bits][upper bits].

#ifndef GRADCOMP_CPU_ELIAS_FANO_H_
#define GRADCOMP_CPU_ELIAS_FANO_H_

#include <cstdint>

#include "core/elias_fano.h"

namespace gradcomp {

// Writes the EliasFanoSize(n, k) bytes of k increasing positions below n, 1 <= k <= n < 2^32.
void EliasFanoEncode(const uint32_t* positions, int64_t k, int64_t n, uint8_t* bytes);

// A place between two positions of a code: the bit of the upper stream at which the next is looked
// for, and the positions before it.
struct EliasFanoPlace {
  int64_t bit;
  int64_t read;
};

// Finds the place before the first position that is not below i * stride for 0 <= i < count, and as
// places[count] the end; `stride` is a multiple of EliasFanoStride(n, k). Says whether the code has
// k positions and zeros in all bits that no position needs: if it has, and readers from each place
// to the next find nothing wrong, the code is an encoder's.
bool EliasFanoFind(const uint8_t* bytes, int64_t n, int64_t k, int64_t stride, int64_t count,
                   EliasFanoPlace* places);
inline int64_t EliasFanoStride(int64_t n, int64_t k) {
  return int64_t{1} << EliasFanoLowBits(n, k);
}

// Reads positions back in order, from bytes that need not be an encoder's.
class EliasFanoReader {
 public:
  EliasFanoReader() = default;
  // Reads those from `begin` to `end`, places that EliasFanoFind found.
  EliasFanoReader(const uint8_t* bytes, int64_t n, int64_t k, const EliasFanoPlace& begin,
                  const EliasFanoPlace& end);

  // Reads the next `count` positions, count <= remaining(); false if one of them is missing, not
  // below n or not above the one before it.
  bool Read(int64_t count, uint32_t* positions);
  int64_t read() const { return read_; }
  int64_t remaining() const { return end_ - read_; }

 private:
  const uint8_t* lower_ = nullptr;
  const uint8_t* upper_ = nullptr;
  int64_t lower_size_ = 0;
  int64_t upper_size_ = 0;
  int low_bits_ = 0;
  int64_t n_ = 0;
  int64_t end_ = 0;
  int64_t read_ = 0;        // positions before the next
  int64_t next_ = 0;        // the smallest position that may follow
  int64_t word_index_ = 0;  // of the upper stream in words of 64 bits, the last one maybe cut short
  uint64_t word_ = 0;       // what is left of it
};

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_ELIAS_FANO_H_
