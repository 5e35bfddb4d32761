#include "tf/gpu/call.h"

#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tf/gpu/device.h"

namespace gradcomp::tf {
namespace {

constexpr auto kInternal = static_cast<TF_Code>(13);

// TensorFlow's C API makes the one of the other.
tensorflow::OpKernelContext* ToCpp(TF_OpKernelContext* context) {
  return reinterpret_cast<tensorflow::OpKernelContext*>(context);
}

}  // namespace

GpuCall::GpuCall(TF_OpKernelContext* context) : Call(context), stream_(StreamOf(ToCpp(context))) {}

bool GpuCall::Check(cudaError_t error, const char* what) {
  return error == cudaSuccess ||
         Fail(kInternal, std::string("CUDA, in ") + what + ": " + cudaGetErrorString(error));
}

bool GpuCall::AllocateTemp(int64_t bytes, void** memory) { return Allocate(bytes, false, memory); }

bool GpuCall::Allocate(int64_t bytes, bool on_host, void** memory) {
  *memory = nullptr;
  if (bytes == 0) return true;
  tensorflow::AllocatorAttributes where;
  where.set_on_host(on_host);
  where.set_gpu_compatible(on_host);
  auto temp = std::make_shared<tensorflow::Tensor>();
  const absl::Status status = ToCpp(context_)->allocate_temp(
      tensorflow::DT_UINT8, tensorflow::TensorShape({bytes}), temp.get(), where);
  if (!status.ok()) {
    ToCpp(context_)->CtxFailure(status);
    return false;
  }
  *memory = temp->data();
  temps_.push_back(std::move(temp));
  return true;
}

bool GpuCall::Read(const cuda::DecodeReport* report) {
  void* memory;
  if (!Allocate(sizeof(*report), true, &memory) ||
      !Check(cudaMemcpyAsync(memory, report, sizeof(*report), cudaMemcpyDeviceToHost, stream_),
             "copying a report")) {
    return false;
  }
  read_ = static_cast<cuda::DecodeReport*>(memory);
  return true;
}

bool GpuCall::CheckRead() {
  if (read_->bad_row == ~0u) return true;
  return Check({}, Status{Code::kBadPayload, read_->bad_row});
}

}  // namespace gradcomp::tf
