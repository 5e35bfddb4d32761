// gradcomp._native: the CPU kernels over NumPy arrays.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/bits.h"
#include "core/dropout.h"
#include "core/threefry.h"
#include "cpu/bits.h"
#include "cpu/bucket.h"
#include "cpu/dropout.h"
#include "cpu/elias_fano.h"
#include "cpu/segments.h"
#include "cpu/threads.h"
#include "python/arguments.h"
#include "python/arrays.h"

namespace gradcomp::python {
namespace {

void EncodeArrays(const Codec& codec, const std::vector<py::array>& gradients,
                  const std::optional<std::vector<py::array>>& residuals, const py::array& segments,
                  const RngArgs& rng, const py::array& payload) {
  const std::vector<ConstTensor> tensors =
      Tensors<ConstTensor>(gradients, "gradients", Access::kRead);
  std::vector<float*> in_place;
  if (residuals) {
    if (residuals->size() != tensors.size()) {
      throw py::value_error("residuals has " + std::to_string(residuals->size()) + " arrays, not " +
                            std::to_string(tensors.size()));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      in_place.push_back(Residual((*residuals)[i], Indexed("residuals", i), tensors[i].numel));
    }
  }
  float* const* residual = residuals ? in_place.data() : nullptr;
  const SegmentTable table = Segments(segments);
  const Rng key = MakeRng(rng);
  const Bytes out = Payload(payload, "payload", Access::kWrite);
  Status status;
  {
    const py::gil_scoped_release release;
    status = Encode(codec, tensors.data(), residual, residual, static_cast<int64_t>(tensors.size()),
                    table.rows, table.size, key, out.data, out.size);
  }
  ThrowUnlessOk(status);
}

bool DecodeArrays(const Codec& codec, const py::array& payloads, int64_t world,
                  const py::array& segments, double scale, const std::vector<py::array>& outputs) {
  const std::vector<MutableTensor> tensors =
      Tensors<MutableTensor>(outputs, "outputs", Access::kWrite);
  const SegmentTable table = Segments(segments);
  const Bytes in = Payload(payloads, "payloads", Access::kRead);
  bool finite = false;
  Status status;
  {
    const py::gil_scoped_release release;
    status =
        Decode(codec, in.data, in.size, world, table.rows, table.size, static_cast<float>(scale),
               tensors.data(), static_cast<int64_t>(tensors.size()), &finite);
  }
  ThrowUnlessOk(status);
  return finite;
}

void ReduceArrays(const Codec& codec, const py::array& payloads, int64_t world,
                  const std::optional<py::array>& residual, const py::array& segments,
                  const RngArgs& rng, double scale, const py::array& payload) {
  const SegmentTable table = Segments(segments);
  float* in_place = nullptr;
  if (residual) {
    int64_t size;
    ThrowUnlessOk(CheckRun(codec, table.rows, table.size, &size));
    int64_t numel = 0;
    for (int64_t row = 0; row < table.size; ++row) numel += table.rows[row].length;
    in_place = Residual(*residual, "residual", numel);
  }
  const Rng key = MakeRng(rng);
  const Bytes in = Payload(payloads, "payloads", Access::kRead);
  const Bytes out = Payload(payload, "payload", Access::kWrite);
  Status status;
  {
    const py::gil_scoped_release release;
    status = Reduce(codec, in.data, in.size, world, table.rows, table.size, key,
                    static_cast<float>(scale), in_place, in_place, out.data, out.size);
  }
  ThrowUnlessOk(status);
}

std::array<uint32_t, 4> ThreefryWords(const std::array<uint32_t, 4>& key,
                                      const std::array<uint32_t, 4>& counter, int rounds) {
  const uint32_t k[4] = {key[0], key[1], key[2], key[3]};
  const uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t out[4];
  if (rounds == 20) {
    Threefry4x32<20>(k, c, out);
  } else if (rounds == kThreefryRounds) {
    Threefry4x32<kThreefryRounds>(k, c, out);
  } else {
    throw py::value_error("rounds is " + std::to_string(rounds) + ", not 12 or 20");
  }
  return {out[0], out[1], out[2], out[3]};
}

// The bytes of the code of these positions below n; ValueError unless there can be so many.
Bytes IndexCode(const py::array& positions, int64_t n, const py::array& bytes, Access access) {
  const int64_t k = positions.size();
  if (k < 1 || k > n || n > kMaxTopKLength) {
    throw py::value_error("there are not " + std::to_string(k) + " positions below " +
                          std::to_string(n));
  }
  const Bytes code = Payload(bytes, "bytes", access);
  if (code.size != EliasFanoSize(n, k)) {
    throw py::value_error("bytes has " + std::to_string(code.size) + " elements, not " +
                          std::to_string(EliasFanoSize(n, k)));
  }
  return code;
}

void EncodePositions(const py::array& positions, int64_t n, const py::array& bytes) {
  CheckArray<uint32_t>(positions, "positions", Access::kRead);
  const Bytes code = IndexCode(positions, n, bytes, Access::kWrite);
  const auto* data = static_cast<const uint32_t*>(positions.data());
  const int64_t k = positions.size();
  bool rising = k == 0 || data[k - 1] < n;
  for (int64_t i = 1; i < k; ++i) rising &= data[i] > data[i - 1];
  if (!rising) {
    throw py::value_error("positions do not increase, or are not below " + std::to_string(n));
  }
  EliasFanoEncode(data, k, n, code.data);
}

void DecodePositions(const py::array& bytes, int64_t n, const py::array& positions) {
  CheckArray<uint32_t>(positions, "positions", Access::kWrite);
  const Bytes code = IndexCode(positions, n, bytes, Access::kRead);
  const int64_t k = positions.size();
  EliasFanoPlace places[2];
  auto* data = static_cast<uint32_t*>(const_cast<void*>(positions.data()));
  if (!EliasFanoFind(code.data, n, k, EliasFanoStride(n, k), 1, places) ||
      !EliasFanoReader(code.data, n, k, places[0], places[1]).Read(k, data)) {
    throw py::value_error("bytes are no code of positions");
  }
}

// ValueError unless `packed` is as long as n codes are.
void CheckPacked(const py::array& packed, int64_t n, int bits) {
  const int64_t size = PackedSize(n, bits);
  if (packed.size() != size) {
    throw py::value_error("packed has " + std::to_string(packed.size()) + " elements, not " +
                          std::to_string(size));
  }
}

// How many codes of `bits` bits `codes` has; ValueError unless `packed` is as long as they are.
int64_t CheckCodes(const py::array& codes, const py::array& packed, int64_t bits) {
  if (!IsCodeWidth(bits)) {
    throw py::value_error("bits is " + std::to_string(bits) + ", not 1, 2, 4 or 8");
  }
  CheckPacked(packed, codes.size(), static_cast<int>(bits));
  return codes.size();
}

void PackBits(const py::array& codes, int64_t bits, const py::array& packed) {
  CheckArray<uint8_t>(codes, "codes", Access::kRead);
  const Bytes out = Payload(packed, "packed", Access::kWrite);
  const int64_t n = CheckCodes(codes, packed, bits);
  const py::gil_scoped_release release;
  PackCodes(static_cast<const uint8_t*>(codes.data()), n, static_cast<int>(bits), out.data);
}

void UnpackBits(const py::array& packed, int64_t bits, const py::array& codes) {
  const Bytes in = Payload(packed, "packed", Access::kRead);
  CheckArray<uint8_t>(codes, "codes", Access::kWrite);
  const int64_t n = CheckCodes(codes, packed, bits);
  auto* out = static_cast<uint8_t*>(const_cast<void*>(codes.data()));
  const py::gil_scoped_release release;
  UnpackCodes(in.data, n, static_cast<int>(bits), out);
}

std::array<uint32_t, 4> PhiloxWords(const std::array<uint32_t, 2>& key,
                                    const std::array<uint32_t, 4>& counter) {
  const uint32_t k[2] = {key[0], key[1]};
  const uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t out[4];
  Philox4x32(k, c, out);
  return {out[0], out[1], out[2], out[3]};
}

void DrawMaskArray(uint64_t key, const std::array<uint64_t, 2>& counter, int64_t fraction_bits,
                   int64_t threshold, int64_t n, const py::array& packed) {
  if (!IsMaskDraw(fraction_bits, threshold)) {
    throw py::value_error("fraction_bits is " + std::to_string(fraction_bits) +
                          ", not 1 to 23, or threshold is " + std::to_string(threshold) +
                          ", not 0 to 2^fraction_bits");
  }
  if (n < 0) throw py::value_error("numel is " + std::to_string(n) + ", a negative number");
  const Bytes out = Payload(packed, "packed", Access::kWrite);
  CheckPacked(packed, n, 1);
  const py::gil_scoped_release release;
  DrawMask({key,
            {counter[0], counter[1]},
            static_cast<int32_t>(fraction_bits),
            static_cast<uint32_t>(threshold)},
           n, out.data);
}

void ApplyMaskArrays(const py::array& x, const py::array& packed, double scale,
                     const py::array& y) {
  const DType dtype = ParseDType(x, "x");
  CheckLayout(x, "x", Access::kRead);
  const Bytes in = Payload(packed, "packed", Access::kRead);
  CheckPacked(packed, x.size(), 1);
  CheckLayout(y, "y", Access::kWrite);
  if (ParseDType(y, "y") != dtype || y.size() != x.size()) {
    throw py::value_error("y has " + std::to_string(y.size()) + " elements of " + DTypeName(y) +
                          ", not " + std::to_string(x.size()) + " of " + DTypeName(x));
  }
  auto* out = const_cast<void*>(y.data());
  const py::gil_scoped_release release;
  ApplyMask(dtype, x.data(), in.data, x.size(), static_cast<float>(scale), out);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "gradcomp's CPU kernels over NumPy arrays.";
  py::class_<Codec>(module, "Codec")
      .def(py::init(&MakeCodec), py::arg("family"), py::arg("bits") = 0, py::arg("block_size") = 0,
           py::arg("stochastic") = false, py::arg("values") = "");
  module.def("payload_size", &PayloadSizeOf, py::arg("codec"), py::arg("segments"));
  module.def("encode", &EncodeArrays, py::arg("codec"), py::arg("gradients"), py::arg("residuals"),
             py::arg("segments"), py::arg("rng"), py::arg("payload"));
  module.def("decode", &DecodeArrays, py::arg("codec"), py::arg("payloads"), py::arg("world"),
             py::arg("segments"), py::arg("scale"), py::arg("outputs"));
  module.def("reduce", &ReduceArrays, py::arg("codec"), py::arg("payloads"), py::arg("world"),
             py::arg("residual"), py::arg("segments"), py::arg("rng"), py::arg("scale"),
             py::arg("payload"));
  module.def("elias_fano_encode", &EncodePositions, py::arg("positions"), py::arg("n"),
             py::arg("bytes"));
  module.def("elias_fano_decode", &DecodePositions, py::arg("bytes"), py::arg("n"),
             py::arg("positions"));
  module.def("pack_bits", &PackBits, py::arg("codes"), py::arg("bits"), py::arg("packed"));
  module.def("unpack_bits", &UnpackBits, py::arg("packed"), py::arg("bits"), py::arg("codes"));
  module.def("draw_mask", &DrawMaskArray, py::arg("key"), py::arg("counter"),
             py::arg("fraction_bits"), py::arg("threshold"), py::arg("numel"), py::arg("packed"));
  module.def("apply_mask", &ApplyMaskArrays, py::arg("x"), py::arg("packed"), py::arg("scale"),
             py::arg("y"));
  module.def("philox4x32", &PhiloxWords, py::arg("key"), py::arg("counter"));
  module.def("set_num_threads", &SetNumThreads, py::arg("count"));
  module.def("threefry4x32", &ThreefryWords, py::arg("key"), py::arg("counter"), py::arg("rounds"));
}

}  // namespace gradcomp::python
