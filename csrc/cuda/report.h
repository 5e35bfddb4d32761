// What became of a decoded bucket, as a tensor.

#ifndef GRADCOMP_CUDA_REPORT_H_
#define GRADCOMP_CUDA_REPORT_H_

#include <cuda_runtime.h>

#include "cuda/rows.h"

namespace gradcomp::cuda {

// Writes whether all outputs are finite; not so where a payload is malformed.
cudaError_t WriteFinite(const DecodeReport* report, bool* finite, cudaStream_t stream);

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_REPORT_H_
