// The schemas of the ops. Loading the library registers them and their CPU kernels.

#include <cstdio>
#include <memory>
#include <vector>

#include "tf/c_api.h"
#include "tf/op_kernel.h"

namespace gradcomp::tf {
namespace {

// The C API's shape functions reach neither attributes nor inputs and outputs after the first:
// gradcomp/kernels sets the static shapes where it builds the op.
void UnknownShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

using Specs = std::vector<const char*>;

// The attributes that make a codec, then more.
Specs CodecAttrs(const Specs& more) {
  Specs attrs = {"family: string", "bits: int = 0", "block_size: int = 0",
                 "stochastic: bool = false", "values: string = ''"};
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}

void RegisterOp(const char* name, const Specs& attrs, const Specs& inputs, const Specs& outputs) {
  TF_OpDefinitionBuilder* op = TF_NewOpDefinitionBuilder(name);
  for (const char* attr : attrs) TF_OpDefinitionBuilderAddAttr(op, attr);
  for (const char* input : inputs) TF_OpDefinitionBuilderAddInput(op, input);
  for (const char* output : outputs) TF_OpDefinitionBuilderAddOutput(op, output);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, UnknownShapes);
  const StatusPtr status(TF_NewStatus());
  TF_RegisterOpDefinition(op, status.get());
  // Nothing to return an error to: the Python side finds that the op is missing.
  if (TF_GetCode(status.get()) != kOk) {
    std::fprintf(stderr, "gradcomp: cannot register %s: %s\n", name, TF_Message(status.get()));
  }
}

bool RegisterAll() {
  // gradients, residuals: one bucket's tensors; no residuals: encode without feedback.
  // segments: [S, 5]; rng: [4]; see cpu/bucket.h. new_residuals have the gradients' shapes.
  RegisterOp("GradcompEncode",
             CodecAttrs({"T: list({float, half, bfloat16}) >= 1", "num_residuals: int >= 0"}),
             {"gradients: T", "residuals: num_residuals * float", "segments: int64", "rng: int64"},
             {"payload: uint8", "new_residuals: num_residuals * float"});
  // payloads: those of `world` ranks, one after the other; residual: none, or one of the chunk.
  RegisterOp("GradcompReduce", CodecAttrs({"world: int >= 1", "num_residuals: int >= 0"}),
             {"payloads: uint8", "residual: num_residuals * float", "segments: int64", "rng: int64",
              "scale: float"},
             {"payload: uint8", "new_residual: num_residuals * float"});
  // dims: the tensors' dimensions, joined; ranks: how many each has.
  RegisterOp("GradcompDecode",
             CodecAttrs({"T: list({float, half, bfloat16}) >= 1", "world: int >= 1",
                         "ranks: list(int) >= 1"}),
             {"payloads: uint8", "segments: int64", "scale: float", "dims: int64"},
             {"tensors: T", "finite: bool"});
  // Codes of `bits` bits, 1, 2, 4 or 8; dims: the shape that they are to have again.
  RegisterOp("GradcompPackBits", {"T: {bool, uint8}", "bits: int"}, {"codes: T"},
             {"packed: uint8"});
  RegisterOp("GradcompUnpackBits", {"T: {bool, uint8}", "bits: int"},
             {"packed: uint8", "dims: int64"}, {"codes: T"});
  // Which elements dropout keeps of a tensor of shape dims, a bit each; core/dropout.h says how.
  RegisterOp("GradcompDrawMask", {"fraction_bits: int", "threshold: int"},
             {"key: uint64", "counter: uint64", "dims: int64"}, {"packed: uint8"});
  // x * scale where the element's bit is set, else 0.
  RegisterOp("GradcompApplyMask", {"T: {float, half, bfloat16}"},
             {"x: T", "packed: uint8", "scale: float"}, {"y: T"});
  RegisterBucketKernels();
  RegisterBitsKernels();
  RegisterDropoutKernels();
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace gradcomp::tf
