#include "cuda/launch.h"
#include "cuda/report.h"

namespace gradcomp::cuda {
namespace {

__global__ void __launch_bounds__(1)
    report_finite_kernel(const DecodeReport* __restrict__ report, bool* __restrict__ finite) {
  *finite = report->finite != 0 && report->bad_row == ~0u;
}

}  // namespace

cudaError_t WriteFinite(const DecodeReport* report, bool* finite, cudaStream_t stream) {
  return Launch(report_finite_kernel, 1, 1, stream, report, finite);
}

}  // namespace gradcomp::cuda
