// What an epilogue reads and writes: the fields of Rows, bound to a type (device/row.cuh).
#pragma once

#include "device/row_registers.cuh"

namespace commlib {

// A row of elements of type E. `kSoon`: a few words are loaded at once; else, and where they would
// take too many registers, when they are asked for.
template <class E, class T, int kPairs, bool kSoon>
struct Input {
  using RowOf = Row<T, kPairs>;
  static constexpr int kWords = Four<E>::kWords * RowOf::kElements / 4;  // of a pair of the row
  static constexpr bool kEarly = kSoon && kPairs * kWords <= 8;
  const RowBlock<T, kPairs>* block;
  int field;
  u32 early[kEarly ? kPairs : 1][kWords];

  __device__ __forceinline__ Input(const RowBlock<T, kPairs>* of, int index)
      : block(of), field(index), early{} {
    if constexpr (kEarly) {
      if (block->has(field)) block->load_words(block->of_row(field), early);
    }
  }

  // To L2: the first thread of those that share a line asks for it.
  __device__ __forceinline__ void bring_near() const {
    constexpr u32 kLine = 128, kPair = 4 * kWords, kThreads = kPair < kLine ? kLine / kPair : 1;
    if (!block->has(field) || block->thread() % kThreads != 0) return;
    const u8* data = block->of_row(field);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
      if (block->has_pair(k))
        asm volatile("prefetch.global.L2 [%0];" ::"l"(data + block->template place<kPair>(k)));
  }

  friend __device__ __forceinline__ bool has(const Input& input) {
    return input.block->has(input.field);
  }
  friend __device__ __forceinline__ RowOf load(const Input& input) {
    if constexpr (kEarly) {
      return input.widened(input.early);
    } else {
      u32 words[kPairs][kWords] = {};
      if (has(input)) input.block->load_words(input.block->of_row(input.field), words);
      return input.widened(words);
    }
  }

 private:
  __device__ __forceinline__ RowOf widened(const u32 (&words)[kPairs][kWords]) const {
    RowOf row(block);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < RowOf::kElements; e += 4)
        Four<E>::widen(&words[k][e / 4 * Four<E>::kWords], &row.v[k][e]);
    return row;
  }
};

// A row, or numbers of it, of elements of type E. What is missing is not written.
template <class E, class T, int kPairs>
struct Output {
  const RowBlock<T, kPairs>* block;
  int field;

  __device__ __forceinline__ E* numbers() const {
    return reinterpret_cast<E*>(block->of_row(field));
  }
  friend __device__ __forceinline__ bool has(const Output& output) {
    return output.block->has(output.field);
  }
  friend __device__ __forceinline__ void store(const Output& output, const Row<T, kPairs>& row) {
    constexpr int kElements = Row<T, kPairs>::kElements;
    constexpr int kWords = Four<E>::kWords * kElements / 4;
    if (!has(output)) return;
    u32 words[kPairs][kWords];
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; e += 4)
        Four<E>::narrow(&row.v[k][e], &words[k][e / 4 * Four<E>::kWords]);
    output.block->store_words(output.block->of_row(output.field), words);
  }
  friend __device__ __forceinline__ void set(const Output& output, float x) {
    if (has(output) && output.block->thread() == 0 && output.block->writes())
      narrow_to(output.numbers(), x);
  }
};

// The numbers of such groups, as max_of_groups lays them out.
template <int kColumns, class E, class T, int kPairs>
__device__ __forceinline__ void set_groups(const Output<E, T, kPairs>& output,
                                           const Row<T, kPairs>& row) {
  constexpr u32 kLanes = kColumns / Row<T, kPairs>::kElements;
  if (!has(output) || !row.block->writes()) return;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const u32 pair = row.block->pair(k);
    if (pair % kLanes == 0 && row.block->has_pair(k))
      narrow_to(output.numbers() + pair / kLanes, row.v[k][0]);
  }
}

}  // namespace commlib
