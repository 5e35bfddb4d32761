// The CPU in place of a GPU, for the ops' GPU kernels on emulated CUDA.

#include "tf/gpu/device.h"

namespace gradcomp::tf {

const char* const kDevice = "CPU";

cudaStream_t StreamOf(tensorflow::OpKernelContext*) { return nullptr; }

}  // namespace gradcomp::tf
