#include "runtime.h"

namespace {

// Device d's memory, as far as tests have said.
struct Memory {
  const char* begin = nullptr;
  size_t size = 0;
};
constexpr int kMaxDevices = 2;
Memory memories[kMaxDevices];
int num_devices = 1;

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "cudaErrorInvalidValue" : "cudaErrorEmulated";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices;
  return num_devices > 0 ? cudaSuccess : static_cast<cudaError_t>(100);
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulation::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= num_devices) return static_cast<cudaError_t>(101);
  emulation::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {cudaMemoryTypeHost, 0};
  for (int device = 0; device < kMaxDevices; ++device) {
    const Memory& memory = memories[device];
    const auto* byte = static_cast<const char*>(pointer);
    if (byte >= memory.begin && byte < memory.begin + memory.size) {
      *attributes = {cudaMemoryTypeDevice, device};
    }
  }
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulation::last_stream = stream;
  return cudaSuccess;
}

// For tests/emulated_gpu.py.
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void emulated_memory(int device, const char* begin, size_t size) {
  memories[device] = {begin, size};
}
EXPORT void emulated_devices(int count) { num_devices = count; }
// Stream and device of the last launch or copy, and the device that is current now.
EXPORT void emulated_launch(uintptr_t* stream, int* device, int* current) {
  *stream = reinterpret_cast<uintptr_t>(emulation::last_stream);
  *device = emulation::last_device;
  *current = emulation::current_device;
}
