// Devices and errors of the CUDA runtime, for Python.

#ifndef GRADCOMP_PYTHON_DEVICE_H_
#define GRADCOMP_PYTHON_DEVICE_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradcomp::python {

inline std::string CudaMessage(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

inline void ThrowUnlessDone(cudaError_t error, const char* operation) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // else the next call of the process would fail with it
  throw std::runtime_error(std::string(operation) + ": " + CudaMessage(error));
}

// What the thread does is done on `device` until this ends.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    ThrowUnlessDone(cudaGetDevice(&before_), "cudaGetDevice");
    ThrowUnlessDone(cudaSetDevice(device), ("device " + std::to_string(device)).c_str());
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

// How many devices there are and, where there is none, why.
inline std::pair<int, std::string> Devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return {count, count > 0 ? "" : "the driver shows no device"};
  cudaGetLastError();
  return {0, CudaMessage(error)};
}

// Of the runtime that is linked in, such as 13000 for 13.0.
inline int RuntimeVersion() {
  int version = 0;
  ThrowUnlessDone(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

// The device that the memory belongs to; -1: the host's memory.
inline int PointerDevice(uintptr_t pointer) {
  cudaPointerAttributes attributes;
  ThrowUnlessDone(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(pointer)),
                  "cudaPointerGetAttributes");
  const bool on_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return on_device ? attributes.device : -1;
}

}  // namespace gradcomp::python

#endif  // GRADCOMP_PYTHON_DEVICE_H_
