// How plain loops become vector code, for each instruction set from one source.

#ifndef GRADCOMP_CPU_SIMD_H_
#define GRADCOMP_CPU_SIMD_H_

#include <cstdint>

#include "core/macros.h"

// A function compiled once for each level of x86-64 and chosen when the library is loaded. Only
// these names work: "haswell" or "icelake-server" are accepted and run at baseline speed. What it
// calls must be GRADCOMP_INLINE to be compiled likewise.
#if defined(GRADCOMP_DISPATCH)
#define GRADCOMP_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRADCOMP_CLONES
#endif

// A function with intrinsics of a level, where there may be a processor for it: call it if HasV3(),
// or HasV4().
#if defined(GRADCOMP_DISPATCH)
#define GRADCOMP_V3 __attribute__((target("arch=x86-64-v3")))
#elif defined(__AVX2__) && defined(__F16C__)
#define GRADCOMP_V3
#endif
#if defined(GRADCOMP_DISPATCH)
#define GRADCOMP_V4 __attribute__((target("arch=x86-64-v4")))
#elif defined(GRADCOMP_EMULATED_V4) || \
    (defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__))
#define GRADCOMP_V4
#endif

namespace gradcomp {

#if defined(GRADCOMP_DISPATCH)
inline bool HasV3() { return __builtin_cpu_supports("x86-64-v3"); }
inline bool HasV4() { return __builtin_cpu_supports("x86-64-v4"); }
#else
#if defined(GRADCOMP_V3)
constexpr bool HasV3() { return true; }
#endif
#if defined(GRADCOMP_V4)
constexpr bool HasV4() { return true; }
#endif
#endif

constexpr int64_t kCacheLine = 64;

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SIMD_H_
