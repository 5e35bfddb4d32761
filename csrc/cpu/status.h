// Errors by value: the kernels neither throw nor allocate to report one.

#ifndef GRADCOMP_CPU_STATUS_H_
#define GRADCOMP_CPU_STATUS_H_

#include <cstdint>
#include <string>

namespace gradcomp {

enum class Code : int32_t {
  kOk,
  kBadCodec,        // the codec is invalid, or the operation is not defined for it
  kBadWorld,        // got = the number of payloads
  kBadSegments,     // got = the first row that breaks a rule; row num_segments: a tensor is missing
  kBadResidual,     // one of residual and new residual is missing, or got elements of want
  kBadPayloadSize,  // got bytes, want bytes
  kBadPayload,      // got = the segment whose bytes no encoder can have made
  kNoMemory,        // got bytes could not be allocated
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  int64_t got = 0;
  int64_t want = 0;

  bool ok() const { return code == Code::kOk; }
};

// One sentence that names the offending value.
std::string StatusMessage(const Status& status);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_STATUS_H_
