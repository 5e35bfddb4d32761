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

namespace gradcomp {

constexpr int64_t kCacheLine = 64;

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SIMD_H_
