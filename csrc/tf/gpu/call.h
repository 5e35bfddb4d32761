// One call of an op on a GPU: its stream, and memory for as long as the call lasts.

#ifndef GRADCOMP_TF_GPU_CALL_H_
#define GRADCOMP_TF_GPU_CALL_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/rows.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {

class GpuCall : public Call {
 public:
  explicit GpuCall(TF_OpKernelContext* context);

  cudaStream_t stream() const { return stream_; }

  // Tells TensorFlow of an error of CUDA's, and what it happened in.
  bool Check(cudaError_t error, const char* what);
  using Call::Check;

  // Device memory; `*memory` is null for none.
  bool AllocateTemp(int64_t bytes, void** memory);

  // Lets the kernel read `report` when the stream has come to it, and fail where a payload is
  // malformed.
  bool Read(const cuda::DecodeReport* report);
  bool is_reading() const { return read_ != nullptr; }
  // Once the stream has come to it.
  bool CheckRead();

 private:
  bool Allocate(int64_t bytes, bool on_host, void** memory);

  cudaStream_t stream_;
  cuda::DecodeReport* read_ = nullptr;
  std::vector<std::shared_ptr<void>> temps_;
};

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_GPU_CALL_H_
