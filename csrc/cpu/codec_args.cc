#include "cpu/codec_args.h"

namespace gradcomp {
namespace {

struct NamedFamily {
  std::string_view name;
  Family family;
};
constexpr NamedFamily kFamilies[] = {
    {"float32", Family::kFloat32},
    {"float16", Family::kFloat16},
    {"bfloat16", Family::kBFloat16},
    {"float8_e4m3", Family::kFloat8E4M3},
    {"float8_e5m2", Family::kFloat8E5M2},
    {"quantize", Family::kQuantize},
    {"sign", Family::kSign},
    {"topk", Family::kTopK},
};

bool ParseFamily(std::string_view name, Family* family) {
  for (const NamedFamily& known : kFamilies) {
    if (name == known.name) {
      *family = known.family;
      return true;
    }
  }
  return false;
}

// "'float32', 'float16', ... or 'topk'", or without top-k.
std::string FamilyNames(bool with_topk) {
  std::string names;
  const Family last = with_topk ? Family::kTopK : Family::kSign;
  for (const NamedFamily& known : kFamilies) {
    if (!names.empty()) names += known.family == last ? " or " : ", ";
    names += "'" + std::string(known.name) + "'";
    if (known.family == last) break;
  }
  return names;
}

std::string Quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace

std::string ParseCodec(std::string_view family, int64_t bits, int64_t block_size, bool stochastic,
                       std::string_view values, Codec* codec) {
  *codec = {};
  if (!ParseFamily(family, &codec->family)) {
    return "family is " + Quoted(family) + ", not " + FamilyNames(true);
  }
  const bool has_values = codec->family == Family::kTopK;
  if (has_values ? !ParseFamily(values, &codec->values) || codec->values == Family::kTopK
                 : !values.empty()) {
    return "values is " + Quoted(values) +
           (has_values ? ", not " + FamilyNames(false) : ", but only 'topk' has values");
  }
  const Family of_values = has_values ? codec->values : codec->family;
  const bool quantizes = of_values == Family::kQuantize;
  if (quantizes ? bits != 8 && bits != 4 && bits != 2 : bits != 0) {
    return "bits is " + std::to_string(bits) +
           (quantizes ? ", not 8, 4 or 2" : ", but nothing is quantized");
  }
  const bool has_blocks = HasScales(of_values);
  if (has_blocks ? block_size <= 0 || block_size > kMaxLength || block_size % kBlockMultiple != 0
                 : block_size != 0) {
    return "block_size is " + std::to_string(block_size) +
           (has_blocks ? ", not a positive multiple of 32 up to 2^40"
                       : ", but there are no blocks");
  }
  if (stochastic && !quantizes) return "stochastic is true, but nothing is quantized";
  codec->bits = static_cast<int>(bits);
  codec->block_size = block_size;
  codec->stochastic = stochastic;
  return "";
}

}  // namespace gradcomp
