// Conventions of the CUDA kernels, and how a bucket reaches them.
//
// One .cu a family. <Family>Encode and <Family>Decode in <family>.h launch its kernels; bucket.h
// chooses among the families.
//
// A launcher takes host arrays of rows with device pointers in them, one row a segment in the order
// of the segment table; where its family needs one, a workspace: device memory, aligned to 16
// bytes, of at least the bytes that <Family>EncodeWorkspace() or <Family>DecodeWorkspace() says;
// and a stream. It launches kernels and memsets on the stream, and neither waits nor allocates; the
// host arrays are read before it returns. It returns the first error of a launch, or
// cudaErrorInvalidValue: callers have checked tables and sizes as csrc/cpu/bucket.cc does.
//
// Tensors are aligned to their elements, payloads may start at any byte. Buffers do not overlap,
// but a new residual may be the old one. The payload of a row follows that of the row before, or
// begins some bytes after its end.
//
// Rows go to kernels by value, as many as fit into a kernel's parameters (ForEachTable in tasks.h).
// A row is cut into tiles, and a tile is a block of threads; FindRow() finds the row. One launch
// serves tensors of different dtypes. Kernels are named <family>_<operation>_kernel, have kThreads
// threads, __launch_bounds__ and static __shared__ arrays, and reach every barrier with all their
// threads. The maths of an element is in csrc/core; constexpr functions that kernels call are
// GRADCOMP_HOST_DEVICE.
//
// Tests run the same sources on the CPU (tests/cuda/emulation.h): tests/cuda/exports.cc passes
// NumPy arrays to bucket.h, tests/cuda_cases.py compares with gradcomp.reference.

#ifndef GRADCOMP_CUDA_ROWS_H_
#define GRADCOMP_CUDA_ROWS_H_

#include <cstdint>

#include "core/codec.h"

namespace gradcomp::cuda {

// A segment to encode: `length` elements of a tensor from its element number `start`, which
// `gradient`, `residual` and `new_residual` point at. The residuals are null for all rows or for
// none; top-k's values have new ones only. `kept` and `stream` are those of the segment table.
struct EncodeRow {
  const void* gradient;
  const float* residual;
  float* new_residual;
  int64_t start;
  int64_t length;
  int64_t kept;
  uint32_t stream;
  DType dtype;
  int64_t gap = 0;  // bytes between the end of the payload before and its own
};

// Where a decoded segment goes.
struct DecodeRow {
  void* output;
  int64_t length;
  int64_t kept;
  DType dtype;
};

// What a decoder says, in device memory: launchers set all bits of it, kernels clear `finite` and
// lower `bad_row`.
struct DecodeReport {
  uint32_t finite;   // not 0: all outputs are finite
  uint32_t bad_row;  // the first row whose bytes no encoder can have made, else all ones
};

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_ROWS_H_
