#include "tf/op_kernel.h"

#include <cstdio>
#include <cstring>

#include "cpu/codec_args.h"

namespace gradcomp::tf {
namespace {

// Of the types that outputs have.
int64_t ElementSize(TF_DataType type) {
  if (type == kFloat) return 4;
  return type == kHalf || type == kBFloat16 ? 2 : 1;
}

}  // namespace

bool Attrs::GetSize(const char* name, int32_t* list_size, int32_t* total_size) {
  TF_OpKernelConstruction_GetAttrSize(context_, name, list_size, total_size, status_.get());
  return Ok();
}

bool Attrs::Get(const char* name, int64_t* value) {
  TF_OpKernelConstruction_GetAttrInt64(context_, name, value, status_.get());
  return Ok();
}

bool Attrs::Get(const char* name, bool* value) {
  unsigned char byte = 0;
  TF_OpKernelConstruction_GetAttrBool(context_, name, &byte, status_.get());
  *value = byte != 0;
  return Ok();
}

bool Attrs::Get(const char* name, std::string* value) {
  int32_t list_size = 0, total_size = 0;
  if (!GetSize(name, &list_size, &total_size)) return false;
  value->resize(total_size);
  TF_OpKernelConstruction_GetAttrString(context_, name, value->data(), value->size(),
                                        status_.get());
  return Ok();
}

bool Attrs::Get(const char* name, std::vector<int64_t>* values) {
  int32_t list_size = 0, total_size = 0;
  if (!GetSize(name, &list_size, &total_size)) return false;
  values->resize(list_size);
  TF_OpKernelConstruction_GetAttrInt64List(context_, name, values->data(), list_size,
                                           status_.get());
  return Ok();
}

bool Attrs::Get(const char* name, std::vector<DType>* values) {
  int32_t list_size = 0, total_size = 0;
  if (!GetSize(name, &list_size, &total_size)) return false;
  std::vector<TF_DataType> types(list_size);
  TF_OpKernelConstruction_GetAttrTypeList(context_, name, types.data(), list_size, status_.get());
  if (!Ok()) return false;
  values->clear();
  for (TF_DataType type : types) values->push_back(ToDType(type));
  return true;
}

bool Attrs::GetType(const char* name, TF_DataType* value) {
  TF_OpKernelConstruction_GetAttrType(context_, name, value, status_.get());
  return Ok();
}

bool Attrs::Get(Codec* codec) {
  std::string family, values;
  int64_t bits = 0, block_size = 0;
  bool stochastic = false;
  if (!Get("family", &family) || !Get("bits", &bits) || !Get("block_size", &block_size) ||
      !Get("stochastic", &stochastic) || !Get("values", &values)) {
    return false;
  }
  const std::string error = ParseCodec(family, bits, block_size, stochastic, values, codec);
  return error.empty() || Fail(kInvalidArgument, error);
}

bool Call::Check(const std::vector<Segment>& segments, const Status& status) {
  if (status.ok()) return true;
  std::string message = StatusMessage(status);
  if (status.code == Code::kBadSegments && status.got < static_cast<int64_t>(segments.size())) {
    const Segment& row = segments[status.got];
    message += ": tensor " + std::to_string(row.tensor) + ", start " + std::to_string(row.start) +
               ", length " + std::to_string(row.length) + ", kept " + std::to_string(row.kept) +
               ", stream " + std::to_string(row.stream);
  }
  return Fail(status.code == Code::kNoMemory ? kResourceExhausted : kInvalidArgument, message);
}

bool Call::GetInput(int index, TensorPtr* tensor) {
  TF_Tensor* raw = nullptr;
  TF_GetInput(context_, index, &raw, status_.get());
  tensor->reset(raw);
  return Ok();
}

bool Call::GetInputs(int first, int64_t count, std::vector<TensorPtr>* tensors) {
  tensors->resize(count);
  for (int64_t i = 0; i < count; ++i) {
    if (!GetInput(static_cast<int>(first + i), &(*tensors)[i])) return false;
  }
  return true;
}

bool Call::GetSegments(int index, std::vector<Segment>* segments) {
  TensorPtr tensor;
  if (!GetInput(index, &tensor)) return false;
  const int64_t columns = sizeof(Segment) / sizeof(int64_t);
  if (TF_NumDims(tensor.get()) != 2 || TF_Dim(tensor.get(), 1) != columns) {
    return Fail(kInvalidArgument, "segments has shape " + ShapeString(tensor.get()) + ", not [S, " +
                                      std::to_string(columns) + "]");
  }
  segments->resize(TF_Dim(tensor.get(), 0));
  if (!segments->empty()) {
    std::memcpy(segments->data(), Data<void>(tensor), segments->size() * sizeof(Segment));
  }
  return true;
}

bool Call::GetRng(int index, Rng* rng) {
  TensorPtr tensor;
  if (!GetInput(index, &tensor)) return false;
  int64_t values[4];
  if (TF_TensorByteSize(tensor.get()) != sizeof(values)) {
    return Fail(kInvalidArgument, "rng has shape " + ShapeString(tensor.get()) +
                                      ", not [4]: seed, step, rank, phase");
  }
  std::memcpy(values, Data<void>(tensor), sizeof(values));
  const auto [seed, step, rank, phase] = values;
  // Rank and phase share one 32-bit word of the generator's counter.
  if (rank < 0 || rank > INT32_MAX) {
    return Fail(kInvalidArgument, "rng: rank is " + std::to_string(rank) + ", not in [0, 2^31)");
  }
  if (phase != 0 && phase != 1) {
    return Fail(kInvalidArgument, "rng: phase is " + std::to_string(phase) + ", not 0 or 1");
  }
  *rng = {static_cast<uint64_t>(seed), static_cast<uint64_t>(step), static_cast<uint32_t>(rank),
          static_cast<uint32_t>(phase)};
  return true;
}

bool Call::GetScale(int index, float* scale) {
  TensorPtr tensor;
  if (!GetInput(index, &tensor)) return false;
  if (TF_TensorElementCount(tensor.get()) != 1) {
    return Fail(kInvalidArgument,
                "scale has shape " + ShapeString(tensor.get()) + ", it must be a scalar");
  }
  *scale = *Data<const float>(tensor);
  return true;
}

bool Call::GetShape(int index, std::vector<int64_t>* shape) {
  TensorPtr tensor;
  if (!GetInput(index, &tensor)) return false;
  if (TF_NumDims(tensor.get()) != 1) {
    return Fail(kInvalidArgument, "dims has shape " + ShapeString(tensor.get()) + ", not [rank]");
  }
  const int64_t* dims = Data<const int64_t>(tensor);
  shape->assign(dims, dims + TF_TensorElementCount(tensor.get()));
  int64_t numel = 1;
  for (int64_t dim : *shape) {
    if (dim < 0 || __builtin_mul_overflow(numel, dim, &numel)) {
      return Fail(kInvalidArgument,
                  "dims: " + std::to_string(dim) + " is negative or makes the tensor too large");
    }
  }
  return true;
}

bool Call::AllocateOutput(int index, TF_DataType type, const std::vector<int64_t>& dims,
                          TensorPtr* tensor) {
  int64_t numel = 1;
  for (int64_t dim : dims) numel *= dim;
  tensor->reset(TF_AllocateOutput(context_, index, type, dims.data(), static_cast<int>(dims.size()),
                                  numel * ElementSize(type), status_.get()));
  return Ok();
}

bool Call::ForwardInput(int index, TensorPtr* input, TensorPtr* output) {
  const std::vector<int64_t> dims = Dims(input->get());
  input->reset();  // memory is handed on by who has it alone
  output->reset(TF_ForwardInputOrAllocateOutput(
      context_, &index, 1, 0, dims.data(), static_cast<int>(dims.size()), nullptr, status_.get()));
  return Ok() && GetInput(index, input);
}

std::vector<int64_t> Dims(const TF_Tensor* tensor) {
  std::vector<int64_t> dims(TF_NumDims(tensor));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = TF_Dim(tensor, static_cast<int>(i));
  return dims;
}

std::string ShapeString(const TF_Tensor* tensor) {
  std::string text = "[";
  for (int64_t dim : Dims(tensor)) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

int64_t TotalLength(const std::vector<Segment>& segments) {
  uint64_t total = 0;  // unsigned: wraps where the table is nonsense
  for (const Segment& segment : segments) total += static_cast<uint64_t>(segment.length);
  return static_cast<int64_t>(total);
}

TF_DataType ToTensorFlow(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kFloat;
    case DType::kFloat16:
      return kHalf;
    case DType::kBFloat16:
      return kBFloat16;
  }
  return kFloat;
}

DType ToDType(TF_DataType type) {
  if (type == kHalf) return DType::kFloat16;
  if (type == kBFloat16) return DType::kBFloat16;
  return DType::kFloat32;
}

void RegisterCpuKernel(const char* op, void* (*create)(TF_OpKernelConstruction*),
                       void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)) {
  const StatusPtr status(TF_NewStatus());
  TF_RegisterKernelBuilder(op, TF_NewKernelBuilder(op, "CPU", create, compute, destroy),
                           status.get());
  if (TF_GetCode(status.get()) != kOk) {
    std::fprintf(stderr, "gradcomp: cannot register the kernel of %s: %s\n", op,
                 TF_Message(status.get()));
  }
}

}  // namespace gradcomp::tf
