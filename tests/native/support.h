// Buffers, numbers and a digest for tests without Python.

#ifndef GRADCOMP_TESTS_NATIVE_SUPPORT_H_
#define GRADCOMP_TESTS_NATIVE_SUPPORT_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/codec.h"
#include "core/float_bits.h"
#include "cpu/elements.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// Ends the program unless `condition` holds, in every kind of build.
#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

namespace gradcomp::test {

// `size` bytes that begin `misalignment` bytes into an allocation and end with it, so that
// AddressSanitizer sees every access past the end.
class Buffer {
 public:
  Buffer(int64_t size, int64_t misalignment)
      : size_(size),
        misalignment_(misalignment),
        bytes_(new uint8_t[static_cast<size_t>(size + misalignment)]()) {}

  uint8_t* data() const { return bytes_.get() + misalignment_; }
  int64_t size() const { return size_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }

  Buffer Copy() const {
    Buffer copy(size_, misalignment_);
    std::memcpy(copy.data(), data(), static_cast<size_t>(size_));
    return copy;
  }
  bool operator==(const Buffer& other) const {
    return size_ == other.size_ &&
           std::memcmp(data(), other.data(), static_cast<size_t>(size_)) == 0;
  }

 private:
  int64_t size_;
  int64_t misalignment_;
  std::unique_ptr<uint8_t[]> bytes_;
};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Makes x, rounded to the dtype, element i of a tensor.
inline void Store(const Buffer& tensor, DType dtype, int64_t i, float x) {
  const uint16_t narrow = dtype == DType::kFloat16 ? HalfFromFloat(x) : BFloat16FromFloat(x);
  if (dtype == DType::kFloat32) {
    std::memcpy(tensor.data() + 4 * i, &x, 4);
  } else {
    std::memcpy(tensor.data() + 2 * i, &narrow, 2);
  }
}

// Rounds upwards and flushes subnormals, as a caller might, for the length of an operation.
class HostileFloatControl {
 public:
#if defined(__x86_64__)
  HostileFloatControl() : saved_(_mm_getcsr()) { _mm_setcsr(kHostile); }
  ~HostileFloatControl() {
    CHECK((_mm_getcsr() & ~0x3fu) == kHostile);
    _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kHostile = 0x1f80 | 0x8000 | 0x0040 | 0x4000;
  unsigned saved_;
#elif defined(__aarch64__)
  HostileFloatControl() : saved_(Get()) { Set(kHostile); }
  ~HostileFloatControl() {
    CHECK(Get() == kHostile);
    Set(saved_);
  }

 private:
  static constexpr uint64_t kHostile = 1 << 24 | 1 << 22;
  static uint64_t Get() {
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Set(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
  uint64_t saved_;
#endif
};

// SplitMix64: equal numbers on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, limit).
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

// Kinds of numbers: 0 ordinary, 1 with ties, 2 subnormal, 3 near overflow, 4 any bits.
constexpr int kNumberKinds = 5;

inline float Number(int kind, Random* random) {
  const uint64_t bits = random->Bits();
  const float uniform = static_cast<float>(static_cast<int32_t>(bits >> 40)) * 0x1p-23f - 1.0f;
  const float ordinary = uniform * uniform * uniform;
  if (kind == 1) return static_cast<float>(static_cast<int32_t>(ordinary * 4));
  if (kind == 2) return ordinary * 0x1p-126f;
  if (kind == 3) return ordinary * 0x1.fffffep127f;
  if (kind == 4) return FloatFromBits(static_cast<uint32_t>(bits));
  return ordinary;
}

// FNV-1a of all bytes added.
class Digest {
 public:
  void Add(const void* data, int64_t size) {
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
    for (int64_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3;
  }
  void Add(const Buffer& buffer) { Add(buffer.data(), buffer.size()); }
  void Add(int64_t number) { Add(&number, sizeof(number)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace gradcomp::test

#endif  // GRADCOMP_TESTS_NATIVE_SUPPORT_H_
