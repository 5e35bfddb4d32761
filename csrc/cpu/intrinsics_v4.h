// The intrinsics of GRADCOMP_V4 functions: the compiler's, or for tests those of any x86-64.

#ifndef GRADCOMP_CPU_INTRINSICS_V4_H_
#define GRADCOMP_CPU_INTRINSICS_V4_H_

#include "cpu/simd.h"

#if defined(GRADCOMP_EMULATED_V4)
#include "emulated_v4.h"
#elif defined(GRADCOMP_V4)
// GCC 12 warns of registers that its own intrinsics leave undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#endif  // GRADCOMP_CPU_INTRINSICS_V4_H_
