// What runs the packing of masks and small codes on a GPU: as Cpu in tf/bits.cc.

#ifndef GRADCOMP_TF_GPU_BITS_H_
#define GRADCOMP_TF_GPU_BITS_H_

#include <cstdint>

#include "cuda/bits.h"
#include "tf/gpu/call.h"

namespace gradcomp::tf {

struct GpuBits {
  using Call = GpuCall;

  static bool Pack(GpuCall& call, const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
    return call.Check(cuda::PackCodes(codes, n, bits, packed, call.stream()), "packing codes");
  }

  static bool Unpack(GpuCall& call, const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
    return call.Check(cuda::UnpackCodes(packed, n, bits, codes, call.stream()), "unpacking codes");
  }
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_GPU_BITS_H_
