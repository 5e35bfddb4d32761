#define EIGEN_USE_GPU  // before all of TensorFlow's headers

#include "tf/gpu/device.h"

#include "tensorflow/core/framework/op_kernel.h"

namespace gradcomp::tf {

const char* const kDevice = "GPU";

cudaStream_t StreamOf(tensorflow::OpKernelContext* context) {
  return context->eigen_gpu_device().stream();
}

}  // namespace gradcomp::tf
