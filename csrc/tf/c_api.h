// The part of TensorFlow's C API that the ops call, declared here so that one binary is built with
// no TensorFlow installed and loads in each version that has these symbols.
//
// The types are opaque, and left to TensorFlow's own headers where those are included first: a
// test compiles both together, which fails when a declaration below differs from theirs.

#ifndef GRADCOMP_TF_C_API_H_
#define GRADCOMP_TF_C_API_H_

#include <cstddef>
#include <cstdint>

extern "C" {

#ifndef TENSORFLOW_C_KERNELS_H_
enum TF_DataType : unsigned int {};
enum TF_Code : unsigned int {};
struct TF_Status;
struct TF_Tensor;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
#endif

#ifndef TENSORFLOW_C_OPS_H_
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
#endif

// Status.
TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status* status);
void TF_SetStatus(TF_Status* status, TF_Code code, const char* message);
TF_Code TF_GetCode(const TF_Status* status);
const char* TF_Message(const TF_Status* status);

// Tensors.
void TF_DeleteTensor(TF_Tensor* tensor);
TF_DataType TF_TensorType(const TF_Tensor* tensor);
int TF_NumDims(const TF_Tensor* tensor);
int64_t TF_Dim(const TF_Tensor* tensor, int dim_index);
int64_t TF_TensorElementCount(const TF_Tensor* tensor);
size_t TF_TensorByteSize(const TF_Tensor* tensor);
void* TF_TensorData(const TF_Tensor* tensor);

// Op schemas.
TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* attr_spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* input_spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* output_spec);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder* builder,
    void (*shape_inference_func)(TF_ShapeInferenceContext* context, TF_Status* status));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);

// Kernels: registration.
TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name, const char* device_name,
                                      void* (*create_func)(TF_OpKernelConstruction*),
                                      void (*compute_func)(void*, TF_OpKernelContext*),
                                      void (*delete_func)(void*));
void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder* builder,
                              TF_Status* status);

// Kernels: attributes.
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* context, TF_Status* status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* context, const char* attr_name,
                                         int32_t* list_size, int32_t* total_size,
                                         TF_Status* status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction* context, const char* attr_name,
                                          int64_t* value, TF_Status* status);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction* context, const char* attr_name,
                                         unsigned char* value, TF_Status* status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* context, const char* attr_name,
                                           char* value, size_t max_length, TF_Status* status);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction* context, const char* attr_name,
                                         TF_DataType* value, TF_Status* status);
void TF_OpKernelConstruction_GetAttrTypeList(TF_OpKernelConstruction* context,
                                             const char* attr_name, TF_DataType* values,
                                             int max_values, TF_Status* status);
void TF_OpKernelConstruction_GetAttrInt64List(TF_OpKernelConstruction* context,
                                              const char* attr_name, int64_t* values,
                                              int max_values, TF_Status* status);

// Kernels: inputs and outputs.
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status);
void TF_GetInput(TF_OpKernelContext* context, int i, TF_Tensor** tensor, TF_Status* status);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int index, TF_DataType dtype,
                             const int64_t* dims, int num_dims, size_t len, TF_Status* status);
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context,
                                           const int* candidate_input_indices,
                                           int num_candidate_input_indices, int output_index,
                                           const int64_t* output_dims, int output_num_dims,
                                           int* forwarded_input, TF_Status* status);

}  // extern "C"

namespace gradcomp::tf {

constexpr auto kFloat = static_cast<TF_DataType>(1);
constexpr auto kUint8 = static_cast<TF_DataType>(4);
constexpr auto kInt64 = static_cast<TF_DataType>(9);
constexpr auto kBool = static_cast<TF_DataType>(10);
constexpr auto kBFloat16 = static_cast<TF_DataType>(14);
constexpr auto kHalf = static_cast<TF_DataType>(19);

constexpr auto kOk = static_cast<TF_Code>(0);
constexpr auto kInvalidArgument = static_cast<TF_Code>(3);
constexpr auto kResourceExhausted = static_cast<TF_Code>(8);

}  // namespace gradcomp::tf

#endif  // GRADCOMP_TF_C_API_H_
