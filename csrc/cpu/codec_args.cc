#include "cpu/codec_args.h"

namespace gradcomp {
namespace {

bool ParseFamily(std::string_view name, Family* family) {
  if (name == "float32")
    *family = Family::kFloat32;
  else if (name == "float16")
    *family = Family::kFloat16;
  else if (name == "bfloat16")
    *family = Family::kBFloat16;
  else if (name == "quantize")
    *family = Family::kQuantize;
  else if (name == "topk")
    *family = Family::kTopK;
  else
    return false;
  return true;
}

std::string Quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace

std::string ParseCodec(std::string_view family, int64_t bits, int64_t block_size, bool stochastic,
                       std::string_view values, Codec* codec) {
  *codec = {};
  if (!ParseFamily(family, &codec->family)) {
    return "family is " + Quoted(family) +
           ", not 'float32', 'float16', 'bfloat16', 'quantize' or 'topk'";
  }
  const bool has_values = codec->family == Family::kTopK;
  if (has_values ? !ParseFamily(values, &codec->values) || codec->values == Family::kTopK
                 : !values.empty()) {
    return "values is " + Quoted(values) +
           (has_values ? ", not 'float32', 'float16', 'bfloat16' or 'quantize'"
                       : ", but only 'topk' has values");
  }
  const bool quantizes =
      codec->family == Family::kQuantize || (has_values && codec->values == Family::kQuantize);
  if (quantizes ? bits != 8 && bits != 4 && bits != 2 : bits != 0) {
    return "bits is " + std::to_string(bits) +
           (quantizes ? ", not 8, 4 or 2" : ", but nothing is quantized");
  }
  if (quantizes ? block_size <= 0 || block_size > kMaxLength || block_size % kBlockMultiple != 0
                : block_size != 0) {
    return "block_size is " + std::to_string(block_size) +
           (quantizes ? ", not a positive multiple of 32 up to 2^40"
                      : ", but nothing is quantized");
  }
  if (stochastic && !quantizes) return "stochastic is true, but nothing is quantized";
  codec->bits = static_cast<int>(bits);
  codec->block_size = block_size;
  codec->stochastic = stochastic;
  return "";
}

}  // namespace gradcomp
