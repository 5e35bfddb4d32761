// The rounding mode that the numerics are defined in.

#ifndef GRADCOMP_CPU_FLOAT_CONTROL_H_
#define GRADCOMP_CPU_FLOAT_CONTROL_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gradcomp {

// For its lifetime, this thread rounds to nearest and keeps subnormals, whatever its owner has
// set: TensorFlow's threads flush subnormals to zero.
class DefaultFloatControl {
 public:
  DefaultFloatControl() : saved_(Get()) { Set(kDefault); }
  ~DefaultFloatControl() { Set(saved_); }
  DefaultFloatControl(const DefaultFloatControl&) = delete;
  DefaultFloatControl& operator=(const DefaultFloatControl&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned int;
  static constexpr Word kDefault = 0x1f80;
  static Word Get() { return _mm_getcsr(); }
  static void Set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kDefault = 0;
  static Word Get() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Set(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
#error "how this processor's floating-point control word is read and set is not known"
#endif

  Word saved_;
};

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_FLOAT_CONTROL_H_
