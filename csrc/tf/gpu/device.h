// Which device the kernels are for, and how its stream is found.

#ifndef GRADCOMP_TF_GPU_DEVICE_H_
#define GRADCOMP_TF_GPU_DEVICE_H_

#include <cuda_runtime.h>

namespace tensorflow {
class OpKernelContext;
}

namespace gradcomp::tf {

extern const char* const kDevice;
cudaStream_t StreamOf(tensorflow::OpKernelContext* context);

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_GPU_DEVICE_H_
