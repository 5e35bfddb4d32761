// The CPU in place of a GPU, for the ops' GPU kernels on emulated CUDA.

#include "tf/gpu/device.h"

#include <cfenv>

namespace gradcomp::tf {

const char* const kDevice = "CPU";

// First of all in a call, and so the place to undo that TensorFlow lets its threads flush denormal
// numbers to zero, which a GPU does not.
cudaStream_t StreamOf(tensorflow::OpKernelContext*) {
  std::fesetenv(FE_DFL_ENV);
  return nullptr;
}

}  // namespace gradcomp::tf
