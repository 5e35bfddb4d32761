// What runs dropout by masks on a GPU: as Cpu in tf/dropout.cc.

#ifndef GRADCOMP_TF_GPU_DROPOUT_H_
#define GRADCOMP_TF_GPU_DROPOUT_H_

#include <cstdint>

#include "cuda/dropout.h"
#include "tf/gpu/call.h"

namespace gradcomp::tf {

struct GpuDropout {
  using Call = GpuCall;

  // `key` and `counter` are in device memory, where TensorFlow makes them of a seed.
  static bool Draw(GpuCall& call, const uint64_t* key, const uint64_t* counter, int fraction_bits,
                   uint32_t threshold, int64_t n, uint8_t* packed) {
    return call.Check(
        cuda::DrawMask(key, counter, fraction_bits, threshold, n, packed, call.stream()),
        "drawing a mask");
  }

  static bool Apply(GpuCall& call, DType dtype, const void* x, const uint8_t* packed, int64_t n,
                    float scale, void* y) {
    return call.Check(cuda::ApplyMask(dtype, x, packed, n, scale, y, call.stream()),
                      "applying a mask");
  }
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_GPU_DROPOUT_H_
