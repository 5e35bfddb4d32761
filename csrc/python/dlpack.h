// What of DLPack's C structures (v0.8 and later, unversioned capsules) is read here.

#ifndef GRADCOMP_PYTHON_DLPACK_H_
#define GRADCOMP_PYTHON_DLPACK_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace gradcomp::python {

namespace py = pybind11;

struct DLTensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  const int64_t* shape;
  const int64_t* strides;  // in elements; null: C order
  uint64_t byte_offset;
};
static_assert(sizeof(DLTensor) == 48, "as DLPack has it");

inline std::string TypeName(const DLTensor& tensor) {
  static const char* const kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  const std::string code = tensor.type_code < 6
                               ? kCodes[tensor.type_code]
                               : "code " + std::to_string(tensor.type_code) + " of bits ";
  if (tensor.type_code == 6 && tensor.type_bits == 8 && tensor.type_lanes == 1) return "bool";
  const std::string name = code + std::to_string(tensor.type_bits);
  return tensor.type_lanes == 1 ? name : name + "x" + std::to_string(tensor.type_lanes);
}

// (pointer, dtype, shape, strides in elements or None) of a capsule, which keeps its ownership.
inline py::tuple ReadDLPack(const py::capsule& capsule) {
  const char* name = capsule.name();
  if (name == nullptr || std::string(name) != "dltensor") {
    throw py::value_error(std::string("the capsule is named ") + (name ? name : "nothing") +
                          ", not dltensor");
  }
  // A DLManagedTensor begins with its DLTensor.
  const auto& tensor = *static_cast<const DLTensor*>(capsule.get_pointer());
  py::tuple shape(tensor.ndim);
  for (int32_t i = 0; i < tensor.ndim; ++i) shape[i] = tensor.shape[i];
  py::object strides = py::none();
  if (tensor.strides != nullptr) {
    py::tuple all(tensor.ndim);
    for (int32_t i = 0; i < tensor.ndim; ++i) all[i] = tensor.strides[i];
    strides = all;
  }
  const uintptr_t pointer = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  return py::make_tuple(pointer, TypeName(tensor), shape, strides);
}

}  // namespace gradcomp::python

#endif  // GRADCOMP_PYTHON_DLPACK_H_
