// What both modules take: codecs, random streams and segment tables, and how they report errors.

#ifndef GRADCOMP_PYTHON_ARGUMENTS_H_
#define GRADCOMP_PYTHON_ARGUMENTS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <new>
#include <string>

#include "core/threefry.h"
#include "cpu/codec_args.h"
#include "cpu/segments.h"
#include "python/arrays.h"

namespace gradcomp::python {

// seed, step, rank, phase; the first two modulo 2^64.
using RngArgs = std::array<py::int_, 4>;

inline Codec MakeCodec(const std::string& family, int64_t bits, int64_t block_size, bool stochastic,
                       const std::string& values) {
  Codec codec;
  const std::string error = ParseCodec(family, bits, block_size, stochastic, values, &codec);
  if (!error.empty()) throw py::value_error(error);
  return codec;
}

inline uint64_t LowWord(const py::int_& value) {
  return PyLong_AsUnsignedLongLongMask(value.ptr());
}

inline Rng MakeRng(const RngArgs& rng) {
  const auto rank = rng[2].cast<int64_t>();
  const auto phase = rng[3].cast<int64_t>();
  if (rank < 0 || rank > INT32_MAX) {
    throw py::value_error("rng has rank " + std::to_string(rank) + ", not in [0, 2^31)");
  }
  if (phase != 0 && phase != 1) {
    throw py::value_error("rng has phase " + std::to_string(phase) + ", not 0 or 1");
  }
  return {LowWord(rng[0]), LowWord(rng[1]), static_cast<uint32_t>(rank),
          static_cast<uint32_t>(phase)};
}

inline void ThrowUnlessOk(const Status& status) {
  if (status.code == Code::kNoMemory) throw std::bad_alloc();
  if (!status.ok()) throw py::value_error(StatusMessage(status));
}

inline int64_t PayloadSizeOf(const Codec& codec, const py::array& segments) {
  const SegmentTable table = Segments(segments);
  int64_t size;
  ThrowUnlessOk(CheckRun(codec, table.rows, table.size, &size));
  return size;
}

}  // namespace gradcomp::python

#endif  // GRADCOMP_PYTHON_ARGUMENTS_H_
