// NumPy arrays as the kernels take them, with errors that name the argument.

#ifndef GRADCOMP_PYTHON_ARRAYS_H_
#define GRADCOMP_PYTHON_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/bucket.h"

namespace gradcomp::python {

namespace py = pybind11;

enum class Access { kRead, kWrite };

inline void CheckLayout(const py::array& array, const std::string& name, Access access) {
  if (!(array.flags() & py::array::c_style)) throw py::value_error(name + " is not C-contiguous");
  if (access == Access::kWrite && !array.writeable()) {
    throw py::value_error(name + " is read-only");
  }
}

inline std::string DTypeName(const py::array& array) {
  return py::str(array.dtype()).cast<std::string>();
}

// `array`, which must hold elements of type T (in this machine's byte order) in C order.
template <typename T>
const py::array& CheckArray(const py::array& array, const std::string& name, Access access) {
  if (!array.dtype().equal(py::dtype::of<T>())) {
    const std::string want = py::str(py::dtype::of<T>()).cast<std::string>();
    throw py::value_error(name + " has dtype " + DTypeName(array) + ", not " + want);
  }
  CheckLayout(array, name, access);
  return array;
}

inline DType ParseDType(const py::array& array, const std::string& name) {
  if (array.dtype().equal(py::dtype::of<float>())) return DType::kFloat32;
  if (array.dtype().equal(py::dtype("float16"))) return DType::kFloat16;
  // An extension type, from ml_dtypes, which need not be installed.
  if (DTypeName(array) == "bfloat16") return DType::kBFloat16;
  throw py::value_error(name + " has dtype " + DTypeName(array) +
                        ", not float32, float16 or bfloat16");
}

inline std::string Indexed(const char* name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

// ConstTensor or MutableTensor of each array.
template <typename Tensor>
std::vector<Tensor> Tensors(const std::vector<py::array>& arrays, const char* name, Access access) {
  std::vector<Tensor> tensors;
  for (const py::array& array : arrays) {
    const std::string element = Indexed(name, tensors.size());
    const DType dtype = ParseDType(array, element);
    CheckLayout(array, element, access);
    tensors.push_back({const_cast<void*>(array.data()), dtype, array.size()});
  }
  return tensors;
}

// A residual of `numel` elements, to be updated in place.
inline float* Residual(const py::array& array, const std::string& name, int64_t numel) {
  CheckArray<float>(array, name, Access::kWrite);
  if (array.size() != numel) {
    throw py::value_error(name + " has " + std::to_string(array.size()) + " elements, not " +
                          std::to_string(numel));
  }
  return static_cast<float*>(const_cast<void*>(array.data()));
}

struct Bytes {
  uint8_t* data;
  int64_t size;
};

inline Bytes Payload(const py::array& array, const char* name, Access access) {
  CheckArray<uint8_t>(array, name, access);
  return {static_cast<uint8_t*>(const_cast<void*>(array.data())), array.size()};
}

struct SegmentTable {
  const Segment* rows;
  int64_t size;
};

inline SegmentTable Segments(const py::array& array) {
  CheckArray<int64_t>(array, "segments", Access::kRead);
  if (array.ndim() != 2 || array.shape(1) != 5) {
    throw py::value_error("segments has shape " + py::str(array.attr("shape")).cast<std::string>() +
                          ", not (rows, 5)");
  }
  if (reinterpret_cast<uintptr_t>(array.data()) % alignof(Segment) != 0) {
    throw py::value_error("segments is not aligned");
  }
  return {static_cast<const Segment*>(array.data()), array.shape(0)};
}

}  // namespace gradcomp::python

#endif  // GRADCOMP_PYTHON_ARRAYS_H_
