// gradcomp._cuda: the CUDA kernels on raw device pointers and a stream.

#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "cuda/bits.h"
#include "cuda/bucket.h"
#include "python/arguments.h"
#include "python/device.h"
#include "python/dlpack.h"

namespace gradcomp::python {
namespace {

using cuda::DecodeReport;
using cuda::DecodeRow;
using cuda::EncodeRow;

// (pointer, dtype, numel)
using TensorArg = std::tuple<uintptr_t, std::string, int64_t>;
// (pointer, bytes)
using MemoryArg = std::pair<uintptr_t, int64_t>;

constexpr int64_t kWorkspaceAlignment = 16;

void CheckPointer(uintptr_t pointer, int64_t alignment, const std::string& name) {
  if (pointer == 0) throw py::value_error(name + " is a null pointer");
  if (pointer % static_cast<uintptr_t>(alignment) != 0) {
    throw py::value_error(name + " is not aligned to " + std::to_string(alignment) + " bytes");
  }
}

DType DTypeOf(const std::string& dtype, const std::string& name) {
  if (dtype == "float32") return DType::kFloat32;
  if (dtype == "float16") return DType::kFloat16;
  if (dtype == "bfloat16") return DType::kBFloat16;
  throw py::value_error(name + " has dtype " + dtype + ", not float32, float16 or bfloat16");
}

int64_t ItemSize(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

std::vector<MutableTensor> TensorsOf(const std::vector<TensorArg>& args, const char* argument) {
  std::vector<MutableTensor> tensors;
  for (const auto& [pointer, dtype_name, numel] : args) {
    const std::string name = Indexed(argument, tensors.size());
    const DType dtype = DTypeOf(dtype_name, name);
    if (numel < 0) {
      throw py::value_error(name + " has " + std::to_string(numel) + " elements");
    }
    if (numel > 0) CheckPointer(pointer, ItemSize(dtype), name);
    tensors.push_back({reinterpret_cast<void*>(pointer), dtype, numel});
  }
  return tensors;
}

// One float32 array a tensor, of its size.
std::vector<float*> ResidualsOf(const std::vector<uintptr_t>& pointers,
                                const std::vector<MutableTensor>& tensors, const char* argument) {
  if (pointers.size() != tensors.size()) {
    throw py::value_error(std::string(argument) + " has " + std::to_string(pointers.size()) +
                          " pointers, not " + std::to_string(tensors.size()));
  }
  std::vector<float*> residuals;
  for (size_t i = 0; i < pointers.size(); ++i) {
    if (tensors[i].numel > 0) CheckPointer(pointers[i], sizeof(float), Indexed(argument, i));
    residuals.push_back(reinterpret_cast<float*>(pointers[i]));
  }
  return residuals;
}

uint8_t* PayloadOf(const MemoryArg& memory, int64_t size, const char* name) {
  if (memory.second != size) {
    throw py::value_error(std::string(name) + " has " + std::to_string(memory.second) +
                          " bytes, not " + std::to_string(size));
  }
  if (size > 0) CheckPointer(memory.first, 1, name);
  return reinterpret_cast<uint8_t*>(memory.first);
}

void* WorkspaceOf(const MemoryArg& memory, int64_t least) {
  if (memory.second < least) {
    throw py::value_error("workspace has " + std::to_string(memory.second) + " bytes, fewer than " +
                          std::to_string(least));
  }
  if (least > 0) CheckPointer(memory.first, kWorkspaceAlignment, "workspace");
  return reinterpret_cast<void*>(memory.first);
}

// Bytes of the payload of a table that covers `tensors`.
int64_t CheckedSize(const Codec& codec, const SegmentTable& table,
                    const std::vector<MutableTensor>& tensors) {
  int64_t size;
  ThrowUnlessOk(CheckCover(
      codec, table.rows, table.size, static_cast<int64_t>(tensors.size()),
      [&](int64_t t) { return tensors[t].numel; }, &size));
  return size;
}

float* At(const std::vector<float*>& residuals, const Segment& segment) {
  return residuals.empty() ? nullptr : residuals[segment.tensor] + segment.start;
}

std::vector<EncodeRow> EncodeRows(const std::vector<MutableTensor>& gradients,
                                  const std::vector<float*>& residuals,
                                  const std::vector<float*>& new_residuals,
                                  const SegmentTable& table) {
  std::vector<EncodeRow> rows;
  for (int64_t i = 0; i < table.size; ++i) {
    const Segment& segment = table.rows[i];
    const MutableTensor& tensor = gradients[segment.tensor];
    rows.push_back(
        {static_cast<const uint8_t*>(tensor.data) + segment.start * ItemSize(tensor.dtype),
         At(residuals, segment), At(new_residuals, segment), segment.start, segment.length,
         segment.kept, static_cast<uint32_t>(segment.stream), tensor.dtype});
  }
  return rows;
}

std::vector<DecodeRow> DecodeRows(const std::vector<MutableTensor>& outputs,
                                  const SegmentTable& table) {
  std::vector<DecodeRow> rows;
  for (int64_t i = 0; i < table.size; ++i) {
    const Segment& segment = table.rows[i];
    const MutableTensor& tensor = outputs[segment.tensor];
    rows.push_back({static_cast<uint8_t*>(tensor.data) + segment.start * ItemSize(tensor.dtype),
                    segment.length, segment.kept, tensor.dtype});
  }
  return rows;
}

// Sizes depend on the table alone: rows without tensors.
int64_t EncodeWorkspaceOf(const Codec& codec, const py::array& segments) {
  PayloadSizeOf(codec, segments);
  const SegmentTable table = Segments(segments);
  std::vector<EncodeRow> rows;
  for (int64_t i = 0; i < table.size; ++i) {
    const Segment& segment = table.rows[i];
    rows.push_back({nullptr, nullptr, nullptr, segment.start, segment.length, segment.kept,
                    static_cast<uint32_t>(segment.stream), DType::kFloat32});
  }
  return cuda::EncodeWorkspace(codec, rows.data(), table.size);
}

void CheckWorld(int64_t world) {
  if (world < 1) throw py::value_error("world is " + std::to_string(world) + ", not at least 1");
}

int64_t DecodeWorkspaceOf(const Codec& codec, const py::array& segments, int64_t world) {
  PayloadSizeOf(codec, segments);
  CheckWorld(world);
  const SegmentTable table = Segments(segments);
  std::vector<DecodeRow> rows;
  for (int64_t i = 0; i < table.size; ++i) {
    rows.push_back({nullptr, table.rows[i].length, table.rows[i].kept, DType::kFloat32});
  }
  return cuda::DecodeWorkspace(codec, rows.data(), table.size, world);
}

void EncodeRaw(const Codec& codec, const std::vector<TensorArg>& gradients,
               const std::optional<std::vector<uintptr_t>>& residuals,
               const std::optional<std::vector<uintptr_t>>& new_residuals,
               const py::array& segments, const RngArgs& rng, const MemoryArg& payload,
               const MemoryArg& workspace, int device, uintptr_t stream) {
  const std::vector<MutableTensor> tensors = TensorsOf(gradients, "gradients");
  if (residuals.has_value() != new_residuals.has_value()) {
    throw py::value_error("one of residuals and new_residuals is missing");
  }
  std::vector<float*> old, left;
  if (residuals) {
    old = ResidualsOf(*residuals, tensors, "residuals");
    left = ResidualsOf(*new_residuals, tensors, "new_residuals");
  }
  const SegmentTable table = Segments(segments);
  uint8_t* out = PayloadOf(payload, CheckedSize(codec, table, tensors), "payload");
  void* scratch = WorkspaceOf(workspace, EncodeWorkspaceOf(codec, segments));
  const std::vector<EncodeRow> rows = EncodeRows(tensors, old, left, table);
  const Rng key = MakeRng(rng);
  const OnDevice on_device(device);
  cudaError_t error;
  {
    const py::gil_scoped_release release;
    error = cuda::Encode(codec, rows.data(), table.size, key, out, scratch, workspace.second,
                         reinterpret_cast<cudaStream_t>(stream));
  }
  ThrowUnlessDone(error, "encode");
}

void DecodeRaw(const Codec& codec, const MemoryArg& payloads, int64_t world,
               const py::array& segments, double scale, const std::vector<TensorArg>& outputs,
               uintptr_t report, const MemoryArg& workspace, int device, uintptr_t stream) {
  const std::vector<MutableTensor> tensors = TensorsOf(outputs, "outputs");
  const SegmentTable table = Segments(segments);
  const int64_t stride = CheckedSize(codec, table, tensors);
  CheckWorld(world);
  const uint8_t* in = PayloadOf(payloads, stride * world, "payloads");
  CheckPointer(report, sizeof(uint32_t), "report");
  void* scratch = WorkspaceOf(workspace, DecodeWorkspaceOf(codec, segments, world));
  const std::vector<DecodeRow> rows = DecodeRows(tensors, table);
  const OnDevice on_device(device);
  cudaError_t error;
  {
    const py::gil_scoped_release release;
    error = cuda::Decode(codec, in, stride, world, rows.data(), table.size,
                         static_cast<float>(scale), reinterpret_cast<DecodeReport*>(report),
                         scratch, workspace.second, reinterpret_cast<cudaStream_t>(stream));
  }
  ThrowUnlessDone(error, "decode");
}

std::pair<bool, std::optional<uint32_t>> ReadReport(uintptr_t report, int device,
                                                    uintptr_t stream) {
  CheckPointer(report, sizeof(uint32_t), "report");
  const OnDevice on_device(device);
  const auto queue = reinterpret_cast<cudaStream_t>(stream);
  DecodeReport read;
  cudaError_t error;
  {
    const py::gil_scoped_release release;
    error = cudaMemcpyAsync(&read, reinterpret_cast<const void*>(report), sizeof(read),
                            cudaMemcpyDeviceToHost, queue);
    if (error == cudaSuccess) error = cudaStreamSynchronize(queue);
  }
  ThrowUnlessDone(error, "read_report");
  if (read.bad_row == UINT32_MAX) return {read.finite != 0, std::nullopt};
  return {read.finite != 0, read.bad_row};
}

int64_t PackedSizeOf(int64_t count, int64_t bits) {
  if (!IsCodeWidth(bits)) {
    throw py::value_error("bits is " + std::to_string(bits) + ", not 1, 2, 4 or 8");
  }
  if (count < 0) throw py::value_error("there are " + std::to_string(count) + " codes");
  return PackedSize(count, static_cast<int>(bits));
}

// Both directions: `codes` has as many bytes as there are codes.
uint8_t* CodesOf(const MemoryArg& codes) { return PayloadOf(codes, codes.second, "codes"); }
uint8_t* PackedOf(const MemoryArg& packed, const MemoryArg& codes, int64_t bits) {
  return PayloadOf(packed, PackedSizeOf(codes.second, bits), "packed");
}

void PackBits(const MemoryArg& codes, int64_t bits, const MemoryArg& packed, int device,
              uintptr_t stream) {
  uint8_t* const out = PackedOf(packed, codes, bits);
  const OnDevice on_device(device);
  ThrowUnlessDone(cuda::PackCodes(CodesOf(codes), codes.second, static_cast<int>(bits), out,
                                  reinterpret_cast<cudaStream_t>(stream)),
                  "pack_bits");
}

void UnpackBits(const MemoryArg& packed, int64_t bits, const MemoryArg& codes, int device,
                uintptr_t stream) {
  const uint8_t* const in = PackedOf(packed, codes, bits);
  const OnDevice on_device(device);
  ThrowUnlessDone(cuda::UnpackCodes(in, codes.second, static_cast<int>(bits), CodesOf(codes),
                                    reinterpret_cast<cudaStream_t>(stream)),
                  "unpack_bits");
}

}  // namespace

PYBIND11_MODULE(_cuda, module) {
  module.doc() = "gradcomp's CUDA kernels on raw device pointers.";
  // Local, since _native has a class of this type, too.
  py::class_<Codec>(module, "Codec", py::module_local())
      .def(py::init(&MakeCodec), py::arg("family"), py::arg("bits") = 0, py::arg("block_size") = 0,
           py::arg("stochastic") = false, py::arg("values") = "");
  module.attr("REPORT_BYTES") = sizeof(DecodeReport);
  module.attr("WORKSPACE_ALIGNMENT") = kWorkspaceAlignment;
  module.def("devices", &Devices);
  module.def("runtime_version", &RuntimeVersion);
  module.def("pointer_device", &PointerDevice, py::arg("pointer"));
  module.def("read_dlpack", &ReadDLPack, py::arg("capsule"));
  module.def("payload_size", &PayloadSizeOf, py::arg("codec"), py::arg("segments"));
  module.def("encode_workspace", &EncodeWorkspaceOf, py::arg("codec"), py::arg("segments"));
  module.def("decode_workspace", &DecodeWorkspaceOf, py::arg("codec"), py::arg("segments"),
             py::arg("world"));
  module.def("encode", &EncodeRaw, py::arg("codec"), py::arg("gradients"), py::arg("residuals"),
             py::arg("new_residuals"), py::arg("segments"), py::arg("rng"), py::arg("payload"),
             py::arg("workspace"), py::arg("device"), py::arg("stream"));
  module.def("decode", &DecodeRaw, py::arg("codec"), py::arg("payloads"), py::arg("world"),
             py::arg("segments"), py::arg("scale"), py::arg("outputs"), py::arg("report"),
             py::arg("workspace"), py::arg("device"), py::arg("stream"));
  module.def("packed_size", &PackedSizeOf, py::arg("count"), py::arg("bits"));
  module.def("pack_bits", &PackBits, py::arg("codes"), py::arg("bits"), py::arg("packed"),
             py::arg("device"), py::arg("stream"));
  module.def("unpack_bits", &UnpackBits, py::arg("packed"), py::arg("bits"), py::arg("codes"),
             py::arg("device"), py::arg("stream"));
  module.def("read_report", &ReadReport, py::arg("report"), py::arg("device"), py::arg("stream"));
}

}  // namespace gradcomp::python
