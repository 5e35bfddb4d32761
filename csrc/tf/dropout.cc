// GradcompDrawMask and GradcompApplyMask on the CPU.

#include "tf/dropout.h"

#include <cstdint>

#include "cpu/dropout.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {
namespace {

// What runs the kernels, and says whether it could.
struct Cpu {
  using Call = tf::Call;

  static bool Draw(Call&, const uint64_t* key, const uint64_t* counter, int fraction_bits,
                   uint32_t threshold, int64_t n, uint8_t* packed) {
    DrawMask({*key, {counter[0], counter[1]}, fraction_bits, threshold}, n, packed);
    return true;
  }

  static bool Apply(Call&, DType dtype, const void* x, const uint8_t* packed, int64_t n,
                    float scale, void* y) {
    ApplyMask(dtype, x, packed, n, scale, y);
    return true;
  }
};

}  // namespace

void RegisterDropoutKernels() {
  RegisterCpuKernel<DrawMaskKernel<Cpu>>("GradcompDrawMask");
  RegisterCpuKernel<ApplyMaskKernel<Cpu>>("GradcompApplyMask");
}

}  // namespace gradcomp::tf
