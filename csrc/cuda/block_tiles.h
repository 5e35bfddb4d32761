// Codecs with a scale a block: which elements and codes the threads of a tile have.
//
// The code bytes of a block of B bytes are planar: byte j holds the codes of elements j, B + j,
// 2B + j, … So the natural piece is a *word*: four bytes of codes, and one quad of elements in each
// plane. Thread t has the words t, t + kThreads, … of a tile, of whose quads neighbouring threads
// have neighbours: accesses coalesce in all planes. A tile is some whole blocks, or where a block
// has more words than a tile (kLarge), some words of one.

#ifndef GRADCOMP_CUDA_BLOCK_TILES_H_
#define GRADCOMP_CUDA_BLOCK_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/codec.h"
#include "core/macros.h"
#include "cuda/launch.h"

namespace gradcomp::cuda {

// Quads of a thread in all its words: 4, or 8 for signs, whose words alone have as many.
template <int kBits>
struct TileShape {
  static constexpr int kPlanes = 8 / kBits;
  static constexpr int kWords = kPlanes < 4 ? 4 / kPlanes : 1;
  static constexpr int kQuads = kWords * kPlanes;
  static constexpr int kElements = 4 * kQuads * kThreads;
  static constexpr int kTileWords = kWords * kThreads;
  static constexpr int kBytes = 4 * kTileWords;
  static constexpr int kMaxBlocks = kElements / kBlockMultiple;

  // In a block of `size` elements.
  static GRADCOMP_HOST_DEVICE constexpr int64_t WordsOf(int64_t size) {
    return CeilDiv(CeilDiv(size, kPlanes), 4);
  }
  static GRADCOMP_HOST_DEVICE constexpr bool IsLarge(int64_t block_size) {
    return block_size > kElements;
  }
  // Of a row.
  static int64_t TilesOf(int64_t length, int64_t block_size) {
    if (!IsLarge(block_size)) {
      return CeilDiv(CeilDiv(length, block_size), kElements / block_size);
    }
    return length / block_size * CeilDiv(WordsOf(block_size), kTileWords) +
           CeilDiv(WordsOf(length % block_size), kTileWords);
  }
};

// A word of a thread: bytes [at, at + 4) of a block of `bytes` bytes and `size` elements; none of
// them exist where the thread has nothing to do. Int holds any place in a block.
template <typename Int>
struct Word {
  int block;  // counted from the first of the tile
  Int begin;  // the block's first element, counted likewise
  Int size;
  Int bytes;
  Int at;

  // The quad in a plane: its first element, counted from the tile's first block, and how many there
  // are from it on, as tensors.h counts.
  __device__ __forceinline__ Int At(int plane) const { return begin + plane * bytes + at; }
  __device__ __forceinline__ Int Count(int plane) const {
    return min(bytes - at, size - plane * bytes - at);
  }
};

template <int kBits, bool kLarge>
class BlockTile {
 public:
  using Shape = TileShape<kBits>;
  using Int = std::conditional_t<kLarge, int64_t, int>;

  // Tile number `tile` of a row of `length` elements.
  __device__ __forceinline__ BlockTile(int64_t length, int64_t block_size, uint32_t tile)
      : length_(length), block_size_(static_cast<Int>(block_size)) {
    if constexpr (kLarge) {
      const int64_t tiles = CeilDiv(Shape::WordsOf(block_size), Shape::kTileWords);
      block_ = tile / tiles;
      first_word_ = tile % tiles * Shape::kTileWords;
      blocks_ = 1;
    } else {
      const int blocks = Shape::kElements / block_size_;
      block_ = int64_t{tile} * blocks;
      first_word_ = 0;
      blocks_ = static_cast<int>(min(int64_t{blocks}, CeilDiv(length, block_size) - block_));
    }
  }

  // Blocks of the tile: from block() on, blocks() of them.
  __device__ __forceinline__ int64_t block() const { return block_; }
  __device__ __forceinline__ int64_t first_element() const { return block_ * block_size_; }
  __device__ __forceinline__ int blocks() const { return blocks_; }
  // Words of a full block; of tiles that are part of one, all.
  __device__ __forceinline__ int words_per_block() const {
    return kLarge ? Shape::kTileWords : static_cast<int>(Shape::WordsOf(block_size_));
  }
  // Whether it is the tile that writes its scales.
  __device__ __forceinline__ bool has_first_word() const { return first_word_ == 0; }

  // Elements of block `block` < blocks() of the tile.
  __device__ __forceinline__ Int SizeOf(int block) const {
    const int64_t left = length_ - (block_ + block) * block_size_;
    return static_cast<Int>(min(int64_t{block_size_}, left));
  }
  // The thread's word number `k`.
  __device__ __forceinline__ Word<Int> WordOf(int k) const {
    const unsigned word = threadIdx.x + k * kThreads;
    const unsigned block = kLarge ? 0 : word / static_cast<unsigned>(words_per_block());
    const Int size = static_cast<int>(block) < blocks_ ? SizeOf(static_cast<int>(block)) : 0;
    const Int at = 4 * (first_word_ + static_cast<Int>(word - block * words_per_block()));
    return {static_cast<int>(block), static_cast<Int>(block) * block_size_, size, BytesOf(size),
            at};
  }

  // Where the tile's codes are in the payload of the row, and how many bytes.
  __device__ __forceinline__ int64_t CodesAt() const {
    return 4 * CeilDiv(length_, int64_t{block_size_}) + block_ * block_size_ / Shape::kPlanes +
           4 * first_word_;
  }
  __device__ __forceinline__ int CodesSize() const {
    const Int last = BytesOf(SizeOf(blocks_ - 1));
    if constexpr (kLarge) {
      return static_cast<int>(min(Int{Shape::kBytes}, last - 4 * first_word_));
    } else {
      return (blocks_ - 1) * (block_size_ / Shape::kPlanes) + last;
    }
  }
  // The tile's elements, counted from its first block: runs of neighbours: those of whole blocks
  // are one run, those of part of a block one in each plane, of kRun at most. The last plane's may
  // go on for up to kPlanes - 1 elements that do not exist.
  static constexpr int kRuns = kLarge ? Shape::kPlanes : 1;
  static constexpr int kRun = Shape::kElements / kRuns;
  __device__ __forceinline__ Int RunFirst(int run) const {
    return kLarge ? run * BytesOf(SizeOf(0)) + 4 * first_word_ : 0;
  }
  __device__ __forceinline__ int RunSize() const {
    if constexpr (kLarge) {
      return CodesSize();  // a byte has a code of each plane
    } else {
      return (blocks_ - 1) * block_size_ + SizeOf(blocks_ - 1);
    }
  }
  // The number of a word's first element in a plane, when runs follow each other every kRun.
  __device__ __forceinline__ int PlaceOf(const Word<Int>& word, int plane) const {
    return kLarge ? plane * kRun + static_cast<int>(word.at - 4 * first_word_)
                  : static_cast<int>(word.At(plane));
  }

  // Where its scales are.
  __device__ __forceinline__ int64_t ScalesAt() const { return 4 * block_; }

 private:
  __device__ __forceinline__ static Int BytesOf(Int size) {
    return (size + Shape::kPlanes - 1) / Shape::kPlanes;
  }

  int64_t length_;
  Int block_size_;
  int64_t block_;
  Int first_word_;
  int blocks_;
};

}  // namespace gradcomp::cuda

#endif  // GRADCOMP_CUDA_BLOCK_TILES_H_
