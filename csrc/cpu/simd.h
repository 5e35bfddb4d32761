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

// Tensors and payloads may start at any byte.
using UnalignedFloat [[gnu::aligned(1), gnu::may_alias]] = float;
using UnalignedU16 [[gnu::aligned(1), gnu::may_alias]] = uint16_t;
using UnalignedU64 [[gnu::aligned(1), gnu::may_alias]] = uint64_t;

constexpr int64_t kCacheLine = 64;

// Fetches what a loop over `bytes` bytes from `data` needs 2 KiB later. Hardware prefetchers lose
// the stream between the two passes of a block kernel; an address past the end does no harm.
GRADCOMP_INLINE void PrefetchAhead(const void* data, int64_t bytes) {
  constexpr uintptr_t kAhead = 2048;
  const uintptr_t first = reinterpret_cast<uintptr_t>(data) + kAhead;
  for (int64_t offset = 0; offset < bytes; offset += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + static_cast<uintptr_t>(offset)));
  }
}

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_SIMD_H_
