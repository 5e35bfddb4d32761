// The CUDA runtime's functions that gradcomp._cuda calls, for memory and devices of the CPU.

#ifndef GRADCOMP_TESTS_CUDA_RUNTIME_H_
#define GRADCOMP_TESTS_CUDA_RUNTIME_H_

#include <cstddef>

#include "emulation.h"

enum cudaMemoryType { cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2, cudaMemoryTypeManaged = 3 };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};

const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

#endif  // GRADCOMP_TESTS_CUDA_RUNTIME_H_
