// GradcompPackBits and GradcompUnpackBits on the CPU.

#include "cpu/bits.h"

#include <cstdint>

#include "tf/bits.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {
namespace {

// What runs the kernels, and says whether it could.
struct Cpu {
  using Call = tf::Call;

  static bool Pack(Call&, const uint8_t* codes, int64_t n, int bits, uint8_t* packed) {
    PackCodes(codes, n, bits, packed);
    return true;
  }

  static bool Unpack(Call&, const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
    UnpackCodes(packed, n, bits, codes);
    return true;
  }
};

}  // namespace

void RegisterBitsKernels() {
  RegisterCpuKernel<PackBitsKernel<Cpu>>("GradcompPackBits");
  RegisterCpuKernel<UnpackBitsKernel<Cpu>>("GradcompUnpackBits");
}

}  // namespace gradcomp::tf
