// The launchers, for ctypes: tests/cuda_library.py has the other side of these signatures.

#include <cstdint>
#include <vector>

#include "cuda/bits.h"
#include "cuda/bucket.h"
#include "cuda/dropout.h"
#include "emulation.h"

namespace {

using namespace gradcomp;
using cuda::DecodeReport;
using cuda::DecodeRow;
using cuda::EncodeRow;

// (family, bits, block_size, stochastic, values), as the enums count.
Codec CodecOf(const int64_t* codec) {
  return {static_cast<Family>(codec[0]), static_cast<int>(codec[1]), codec[2], codec[3] != 0,
          static_cast<Family>(codec[4])};
}

// Each row is (gradient, residual, new residual, dtype, start, length, kept, stream).
std::vector<EncodeRow> EncodeRowsOf(const int64_t* rows, int64_t num_rows) {
  std::vector<EncodeRow> all;
  for (const int64_t* row = rows; row < rows + 8 * num_rows; row += 8) {
    all.push_back({reinterpret_cast<const void*>(row[0]), reinterpret_cast<const float*>(row[1]),
                   reinterpret_cast<float*>(row[2]), row[4], row[5], row[6],
                   static_cast<uint32_t>(row[7]), static_cast<DType>(row[3])});
  }
  return all;
}

// Each row is (output, dtype, length, kept).
std::vector<DecodeRow> DecodeRowsOf(const int64_t* rows, int64_t num_rows) {
  std::vector<DecodeRow> all;
  for (const int64_t* row = rows; row < rows + 4 * num_rows; row += 4) {
    all.push_back({reinterpret_cast<void*>(row[0]), row[2], row[3], static_cast<DType>(row[1])});
  }
  return all;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void emulated_seed(uint64_t seed) {
  emulation::SetSeed(seed);
}

// Kernels so far.
__attribute__((visibility("default"))) int64_t emulated_launches() { return emulation::launches; }

__attribute__((visibility("default"))) int64_t emulated_encode_workspace(const int64_t* codec,
                                                                         const int64_t* rows,
                                                                         int64_t num_rows) {
  const std::vector<EncodeRow> all = EncodeRowsOf(rows, num_rows);
  return cuda::EncodeWorkspace(CodecOf(codec), all.data(), num_rows);
}

__attribute__((visibility("default"))) int emulated_encode(const int64_t* codec,
                                                           const int64_t* rows, int64_t num_rows,
                                                           const uint64_t* rng, uint8_t* payload,
                                                           void* workspace,
                                                           int64_t workspace_size) {
  const std::vector<EncodeRow> all = EncodeRowsOf(rows, num_rows);
  const Rng key = {rng[0], rng[1], static_cast<uint32_t>(rng[2]), static_cast<uint32_t>(rng[3])};
  return cuda::Encode(CodecOf(codec), all.data(), num_rows, key, payload, workspace, workspace_size,
                      nullptr);
}

__attribute__((visibility("default"))) int64_t emulated_decode_workspace(const int64_t* codec,
                                                                         const int64_t* rows,
                                                                         int64_t num_rows,
                                                                         int64_t world) {
  const std::vector<DecodeRow> all = DecodeRowsOf(rows, num_rows);
  return cuda::DecodeWorkspace(CodecOf(codec), all.data(), num_rows, world);
}

// report: (finite, bad row).
__attribute__((visibility("default"))) int emulated_decode(const int64_t* codec,
                                                           const uint8_t* payloads, int64_t stride,
                                                           int64_t world, const int64_t* rows,
                                                           int64_t num_rows, float scale,
                                                           uint32_t* report, void* workspace,
                                                           int64_t workspace_size) {
  const std::vector<DecodeRow> all = DecodeRowsOf(rows, num_rows);
  return cuda::Decode(CodecOf(codec), payloads, stride, world, all.data(), num_rows, scale,
                      reinterpret_cast<DecodeReport*>(report), workspace, workspace_size, nullptr);
}

__attribute__((visibility("default"))) int emulated_pack_codes(const uint8_t* codes, int64_t n,
                                                               int bits, uint8_t* packed) {
  return cuda::PackCodes(codes, n, bits, packed, nullptr);
}

__attribute__((visibility("default"))) int emulated_unpack_codes(const uint8_t* packed, int64_t n,
                                                                 int bits, uint8_t* codes) {
  return cuda::UnpackCodes(packed, n, bits, codes, nullptr);
}

// key: [1]; counter: [2].
__attribute__((visibility("default"))) int emulated_draw_mask(const uint64_t* key,
                                                              const uint64_t* counter,
                                                              int fraction_bits, uint32_t threshold,
                                                              int64_t n, uint8_t* packed) {
  return cuda::DrawMask(key, counter, fraction_bits, threshold, n, packed, nullptr);
}

__attribute__((visibility("default"))) int emulated_apply_mask(int dtype, const void* x,
                                                               const uint8_t* packed, int64_t n,
                                                               float scale, void* y) {
  return cuda::ApplyMask(static_cast<DType>(dtype), x, packed, n, scale, y, nullptr);
}
}
