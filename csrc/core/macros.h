#ifndef GRADCOMP_CORE_MACROS_H_
#define GRADCOMP_CORE_MACROS_H_

#if defined(__CUDACC__)
#define GRADCOMP_HOST_DEVICE __host__ __device__
#else
#define GRADCOMP_HOST_DEVICE
#endif

#endif  // GRADCOMP_CORE_MACROS_H_
