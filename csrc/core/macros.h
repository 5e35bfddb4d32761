// Host and device from one source.

#ifndef GRADCOMP_CORE_MACROS_H_
#define GRADCOMP_CORE_MACROS_H_

#define GRADCOMP_PRAGMA(text) _Pragma(#text)

// GRADCOMP_UNROLL(n): the loop that follows runs n times at most, and is unrolled.
#if defined(__CUDACC__)
#define GRADCOMP_HOST_DEVICE __host__ __device__
#define GRADCOMP_INLINE __host__ __device__ __forceinline__
#define GRADCOMP_UNROLL(n) GRADCOMP_PRAGMA(unroll)
#else
#define GRADCOMP_UNROLL(n) GRADCOMP_PRAGMA(GCC unroll n)
#define GRADCOMP_HOST_DEVICE
// Forced, because a function compiled for several instruction sets speeds up only what it absorbs.
#define GRADCOMP_INLINE inline __attribute__((always_inline))
#endif

#endif  // GRADCOMP_CORE_MACROS_H_
