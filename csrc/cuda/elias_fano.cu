#include "cuda/elias_fano.h"
#include "cuda/scan.h"

namespace gradcomp::cuda {
namespace {

// Four bytes of a stream, little endian, from its byte `at`; zeros past its end.
__device__ __forceinline__ uint32_t LoadBytes(const uint8_t* stream, int64_t size, int64_t at) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    if (at + i < size) word |= static_cast<uint32_t>(stream[at + i]) << 8 * i;
  }
  return word;
}

__device__ __forceinline__ void StoreBytes(uint8_t* stream, int64_t size, int64_t at,
                                           uint32_t word) {
  for (int i = 0; i < 4; ++i) {
    if (at + i < size) stream[at + i] = static_cast<uint8_t>(word >> 8 * i);
  }
}

__device__ __forceinline__ uint32_t LowMask(int low_bits) { return (1u << low_bits) - 1; }

// The 32 bits of the lower stream from bit `first` on.
__device__ __forceinline__ uint32_t LowerWord(const PositionsRow& row, int low_bits,
                                              int64_t first) {
  uint32_t word = 0;
  for (int64_t i = first / low_bits; i < row.k && i * low_bits < first + 32; ++i) {
    const uint32_t low = row.positions[i] & LowMask(low_bits);
    const int shift = static_cast<int>(i * low_bits - first);
    word |= shift >= 0 ? low << shift : low >> -shift;
  }
  return word;
}

// The bit of position i in the upper stream.
__device__ __forceinline__ int64_t UpperBit(const PositionsRow& row, int low_bits, uint32_t i) {
  return int64_t{i} + (row.positions[i] >> low_bits);
}

// The first position whose bit is not before `bit`.
__device__ __forceinline__ uint32_t FindPosition(const PositionsRow& row, int low_bits,
                                                 int64_t bit) {
  uint32_t low = 0, high = row.k;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (UpperBit(row, low_bits, middle) < bit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Bytes moved a position: 4 in, its code of some 2 + log2(n / k) bits out. Blocks write to no byte
// of one another, so nothing has to be cleared before.
__global__ void __launch_bounds__(kThreads)
    elias_fano_encode_kernel(const __grid_constant__ Table<PositionsRow> table) {
  __shared__ uint32_t words[kThreads];
  __shared__ uint32_t range[2];
  const int index = FindRow(table, blockIdx.x);
  const PositionsRow& row = table.rows[index];
  const int low_bits = EliasFanoLowBits(row.n, row.k);
  const int64_t lower_size = EliasFanoLowerSize(row.n, row.k);
  const int64_t upper_size = EliasFanoSize(row.n, row.k) - lower_size;
  const int64_t block = blockIdx.x - table.first_tile[index];
  const int64_t lower_blocks = CeilDiv(lower_size, kCodeBytes);
  if (block < lower_blocks) {
    const int64_t at = block * kCodeBytes + 4 * threadIdx.x;
    return StoreBytes(row.bytes, lower_size, at, LowerWord(row, low_bits, at * 8));
  }
  // All positions of these bits, each by one thread.
  const int64_t at = (block - lower_blocks) * kCodeBytes;
  const int64_t first_bit = at * 8;
  words[threadIdx.x] = 0;
  if (threadIdx.x < 2) {
    range[threadIdx.x] = FindPosition(row, low_bits, first_bit + threadIdx.x * kCodeBytes * 8);
  }
  __syncthreads();
  for (uint32_t i = range[0] + threadIdx.x; i < range[1]; i += kThreads) {
    const int bit = static_cast<int>(UpperBit(row, low_bits, i) - first_bit);
    atomicOr(&words[bit / 32], 1u << bit % 32);
  }
  __syncthreads();
  StoreBytes(row.bytes + lower_size, upper_size, at + 4 * threadIdx.x, words[threadIdx.x]);
}

// A block's part of a rank's code: kCodeBytes of the upper stream, 32 bits for each thread.
struct Part {
  const uint8_t* lower;
  const uint8_t* upper;
  int64_t lower_size;
  int64_t upper_size;
  int64_t rank;
  int64_t block;   // of the rank
  int64_t blocks;  // of a rank
  uint32_t word;   // of this thread

  __device__ __forceinline__ Part(const CodesRow& row, int64_t block_of_row, int64_t stride) {
    blocks = EliasFanoBlocksOfRank(row.n, row.k);
    rank = block_of_row / blocks;
    block = block_of_row % blocks;
    lower = row.bytes + rank * stride;
    lower_size = EliasFanoLowerSize(row.n, row.k);
    upper = lower + lower_size;
    upper_size = EliasFanoSize(row.n, row.k) - lower_size;
    word = LoadBytes(upper, upper_size, first_byte());
  }
  __device__ __forceinline__ int64_t first_byte() const {
    return block * kCodeBytes + 4 * threadIdx.x;
  }
  // Whether the bit before this thread's is set.
  __device__ __forceinline__ bool follows_one() const {
    return first_byte() > 0 && first_byte() <= upper_size && upper[first_byte() - 1] >> 7 != 0;
  }
};

__global__ void __launch_bounds__(kThreads)
    elias_fano_count_kernel(const __grid_constant__ Table<CodesRow> table, int64_t stride) {
  __shared__ uint32_t warps[kThreads / 32];
  const int index = FindRow(table, blockIdx.x);
  const CodesRow& row = table.rows[index];
  const uint32_t block = blockIdx.x - table.first_tile[index];
  const Part part(row, block, stride);
  const uint32_t ones = BlockSum(static_cast<uint32_t>(__popc(part.word)), warps).total;
  if (threadIdx.x == 0) row.ones[block] = ones;
}

// The low bits of position i.
__device__ __forceinline__ uint32_t LowerBits(const Part& part, int low_bits, int64_t i) {
  const int64_t bit = i * low_bits;
  const uint64_t words = LoadBytes(part.lower, part.lower_size, bit / 8) |
                         static_cast<uint64_t>(LoadBytes(part.lower, part.lower_size, bit / 8 + 4))
                             << 32;
  return static_cast<uint32_t>(words >> bit % 8) & LowMask(low_bits);
}

// Writes the positions of a thread's ones, the first of which is number `i`. Says whether an
// encoder can have written them.
__device__ __forceinline__ bool WritePositions(const CodesRow& row, const Part& part, int64_t i) {
  const int low_bits = EliasFanoLowBits(row.n, row.k);
  // High bits do not decrease by themselves. They are equal where no zero lies between the ones.
  bool follows = part.follows_one();
  uint32_t before = part.word != 0 && follows && i <= row.k ? LowerBits(part, low_bits, i - 1) : 0;
  for (int bit = 0; bit < 32; ++bit) {
    const bool one = (part.word >> bit & 1) != 0;
    if (one) {
      if (i >= row.k) return false;
      const int64_t high = part.first_byte() * 8 + bit - i;
      const uint32_t low = LowerBits(part, low_bits, i);
      const int64_t position = high << low_bits | low;
      if (position >= row.n || (follows && low <= before)) return false;
      row.positions[part.rank * row.k + i] = static_cast<uint32_t>(position);
      before = low;
      ++i;
    }
    follows = one;
  }
  return true;
}

// Whether the last bits of the lower stream, which no position has, are zeros.
__device__ __forceinline__ bool EndsInZeros(const Part& part, int64_t bits) {
  return bits % 8 == 0 || part.lower[bits / 8] >> bits % 8 == 0;
}

// Bytes moved a position: its code in, 4 out. Every block adds up what the blocks before it have
// counted, which the L2 cache holds.
__global__ void __launch_bounds__(kThreads)
    elias_fano_decode_kernel(const __grid_constant__ Table<CodesRow> table, int64_t stride,
                             DecodeReport* report) {
  __shared__ uint32_t warps[kThreads / 32];
  const int index = FindRow(table, blockIdx.x);
  const CodesRow& row = table.rows[index];
  const Part part(row, blockIdx.x - table.first_tile[index], stride);
  uint32_t counted = 0;
  for (int64_t block = threadIdx.x; block < part.block; block += kThreads) {
    counted += row.ones[part.rank * part.blocks + block];
  }
  const uint32_t before_block = BlockSum(counted, warps).total;
  const Sum<uint32_t> ones = BlockSum(static_cast<uint32_t>(__popc(part.word)), warps);
  bool good = WritePositions(row, part, int64_t{before_block} + ones.before);
  if (threadIdx.x == 0 && part.block == part.blocks - 1) {
    good = good && before_block + ones.total == row.k &&
           EndsInZeros(part, int64_t{row.k} * EliasFanoLowBits(row.n, row.k));
  }
  if (!good) atomicMin(&report->bad_row, row.row);
}

}  // namespace

cudaError_t EliasFanoEncode(const Table<PositionsRow>& table, int64_t blocks, cudaStream_t stream) {
  return Launch(elias_fano_encode_kernel, blocks, kThreads, stream, table);
}

cudaError_t EliasFanoCount(const Table<CodesRow>& table, int64_t blocks, int64_t stride,
                           cudaStream_t stream) {
  return Launch(elias_fano_count_kernel, blocks, kThreads, stream, table, stride);
}

cudaError_t EliasFanoDecode(const Table<CodesRow>& table, int64_t blocks, int64_t stride,
                            DecodeReport* report, cudaStream_t stream) {
  return Launch(elias_fano_decode_kernel, blocks, kThreads, stream, table, stride, report);
}

}  // namespace gradcomp::cuda
