#include "cpu/status.h"

namespace gradcomp {

std::string StatusMessage(const Status& status) {
  const std::string got = std::to_string(status.got);
  const std::string want = std::to_string(status.want);
  switch (status.code) {
    case Code::kOk:
      return "ok";
    case Code::kBadCodec:
      return "the codec does not have this operation";
    case Code::kBadWorld:
      return "world is " + got + ", not at least 1";
    case Code::kBadSegments:
      return "row " + got + " of segments is out of order, out of bounds or missing";
    case Code::kBadResidual:
      return "residuals need new residuals, and the other way round";
    case Code::kBadPayloadSize:
      return "the payload is " + got + " bytes, where segments and world make " + want;
    case Code::kBadPayload:
      return "the payload of segment " + got + " is malformed";
    case Code::kNoMemory:
      return "out of memory: " + got + " bytes";
  }
  return "unknown status";
}

}  // namespace gradcomp
