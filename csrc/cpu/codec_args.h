// From the names and numbers that Python and TensorFlow pass to a Codec.

#ifndef GRADCOMP_CPU_CODEC_ARGS_H_
#define GRADCOMP_CPU_CODEC_ARGS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/codec.h"

namespace gradcomp {

// Sets *codec, or returns a sentence that names the offending argument ("" on success).
// Names are "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "quantize", "sign" and,
// for `family`, "topk"; `values` is "" unless the family is top-k.
std::string ParseCodec(std::string_view family, int64_t bits, int64_t block_size, bool stochastic,
                       std::string_view values, Codec* codec);

}  // namespace gradcomp

#endif  // GRADCOMP_CPU_CODEC_ARGS_H_
