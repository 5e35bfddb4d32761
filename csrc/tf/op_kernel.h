// What the kernels share: attributes and tensors by name, errors that never leave as exceptions.
//
// Functions that return bool return false after having told TensorFlow what is wrong; the caller
// returns too.

#ifndef GRADCOMP_TF_OP_KERNEL_H_
#define GRADCOMP_TF_OP_KERNEL_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/codec.h"
#include "cpu/bucket.h"
#include "cpu/status.h"
#include "tf/c_api.h"

namespace gradcomp::tf {

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

// Tells TensorFlow of errors: its two contexts differ in the function that does.
template <class Context, void (*kFailure)(Context*, TF_Status*)>
class Reporter {
 public:
  explicit Reporter(Context* context) : context_(context), status_(TF_NewStatus()) {}

  bool Fail(TF_Code code, const std::string& message) {
    TF_SetStatus(status_.get(), code, message.c_str());
    return Ok();
  }

 protected:
  bool Ok() {
    if (TF_GetCode(status_.get()) == kOk) return true;
    kFailure(context_, status_.get());
    return false;
  }

  Context* context_;
  StatusPtr status_;
};

// The attributes of an op, when its kernel is made.
class Attrs : public Reporter<TF_OpKernelConstruction, TF_OpKernelConstruction_Failure> {
 public:
  using Reporter::Reporter;

  bool Get(const char* name, int64_t* value);
  bool Get(const char* name, std::vector<int64_t>* values);
  bool Get(const char* name, std::vector<DType>* values);
  bool GetType(const char* name, TF_DataType* value);
  // The five attributes that make a codec.
  bool Get(Codec* codec);

 private:
  bool Get(const char* name, bool* value);
  bool Get(const char* name, std::string* value);
  bool GetSize(const char* name, int32_t* list_size, int32_t* total_size);
};

// The inputs and outputs of one call.
class Call : public Reporter<TF_OpKernelContext, TF_OpKernelContext_Failure> {
 public:
  using Reporter::Reporter;

  // Of an operation on `segments`.
  bool Check(const std::vector<Segment>& segments, const Status& status);

  bool GetInput(int index, TensorPtr* tensor);
  bool GetInputs(int first, int64_t count, std::vector<TensorPtr>* tensors);
  bool GetSegments(int index, std::vector<Segment>* segments);
  bool GetRng(int index, Rng* rng);
  bool GetScale(int index, float* scale);
  // Of an int64 vector: dimensions of which none is negative and whose product is no overflow.
  bool GetShape(int index, std::vector<int64_t>* shape);

  bool AllocateOutput(int index, TF_DataType type, const std::vector<int64_t>& dims,
                      TensorPtr* tensor);
  // An output like input `index`, in the input's own memory if nobody else has it. `*input` is to
  // be taken from here: it comes to the caller with the output.
  bool ForwardInput(int index, TensorPtr* input, TensorPtr* output);
};

TF_DataType ToTensorFlow(DType dtype);
// Of a type that the op's schema has already limited to the three.
DType ToDType(TF_DataType type);
std::vector<int64_t> Dims(const TF_Tensor* tensor);
std::string ShapeString(const TF_Tensor* tensor);
// Sum of the rows' lengths; of rows not yet checked, so that it may be anything.
int64_t TotalLength(const std::vector<Segment>& segments);
template <class T>
T* Data(const TensorPtr& tensor) {
  return static_cast<T*>(TF_TensorData(tensor.get()));
}

template <class Kernel>
void* CreateKernel(TF_OpKernelConstruction* context) {
  try {
    Attrs attrs(context);
    auto kernel = std::make_unique<Kernel>();
    return kernel->Init(attrs) ? kernel.release() : nullptr;
  } catch (const std::exception& error) {
    Attrs(context).Fail(kResourceExhausted, error.what());
    return nullptr;
  }
}

template <class Kernel>
void ComputeKernel(void* kernel, TF_OpKernelContext* context) {
  try {
    Call call(context);
    static_cast<const Kernel*>(kernel)->Compute(call);
  } catch (const std::exception& error) {
    Call(context).Fail(kResourceExhausted, error.what());
  }
}

template <class Kernel>
void DeleteKernel(void* kernel) {
  delete static_cast<Kernel*>(kernel);
}

void RegisterCpuKernel(const char* op, void* (*create)(TF_OpKernelConstruction*),
                       void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));

// Kernel has `bool Init(Attrs&)` and `bool Compute(Call&) const`.
template <class Kernel>
void RegisterCpuKernel(const char* op) {
  RegisterCpuKernel(op, CreateKernel<Kernel>, ComputeKernel<Kernel>, DeleteKernel<Kernel>);
}

void RegisterBucketKernels();
void RegisterBitsKernels();
void RegisterDropoutKernels();

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_OP_KERNEL_H_
