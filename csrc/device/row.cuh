// Rows in registers, and the epilogues that work on them.
//
// A block of kRowThreads threads holds a row: thread t has its pairs of words t, t + kRowThreads,
// …, as float. An epilogue gets the sum of all ranks' rows, rounded to their type T, and reads and
// writes fields of Rows, each bound to its type and index. It is a struct of this form, whose
// middle is the epilogue proper; here h = x + residual, out = h * weight / largest |h|:
//
//   struct Scaled {
//     template <class Block>
//     static __device__ __forceinline__ void run(Block& block) {
//       using T = typename Block::Element;
//       using Row = typename Block::Row;
//       const auto residual = block.template input<T>(0);     // a row; loads begin here
//       const auto weight = block.template input<float>(1);
//       const auto limit = block.template value<float>(2);    // one number of each row, or of all
//       const auto out = block.template output<e4m3>(3);      // a row, or numbers of it
//       const auto largest = block.template output<float>(4);
//       const float eps = block.number(0);
//       const float width = block.width();
//       const Row x = block.take();                           // does not return from a failed call
//       {
//         const Row h = has(residual) ? round(x + load(residual)) : x;
//         const float most = max(abs(h)) + eps;
//         store(out, h * load(weight) * (limit / most));
//         set(largest, most);
//       }
//     }
//   };
//
// Every binding stands before take(): what it loads is on its way while the block waits for peers.
// `late_input` is an input that is seldom there: it is loaded when asked for, and takes no
// registers before. The middle runs on all kRowThreads threads alike: sum(), max() of a row and
// max_of_groups() need them all, so no thread may pass one by, or return before the end.
//
//   Row x Row, Row x number   + - * /  min(a, b)  max(a, b)
//   of each element           -row  abs(row)  map(row, f)  map(a, b, f)  round(row): to T and back
//   of the row                sum(row)  max(row)
//   of each 128 columns       max_of_groups<128>(row): a Row that has it in every element
//   fields                    has(field)  load(input)  store(output, row): rounded, or saturated
//                             set(output, number)  set_groups<128>(output, row)
//   of CUDA                   sqrtf, expf, … on numbers, and inside map
//
// A row's bits depend on that row alone. Where a sum has an order, the width and T give it: each
// thread adds up its pairs one after the other, element by element, then the sums of its elements
// by halves, then the lanes by halves, then the warps by halves; whatever lies beyond the width
// adds nothing. `max` has no order; NaN wins in it.
//
// In place is fine, since the thread that writes an element of a row is the one that has read it.
#pragma once

#include "commlib/rows.h"
#include "device/elements.cuh"
#include "device/row_threads.cuh"

namespace commlib {

// --- a row

template <class T, int kPairs>
class RowBlock;

// One number of a row.
struct Value {
  bool given;
  float number;
  __device__ __forceinline__ operator float() const { return number; }
};
__device__ __forceinline__ bool has(const Value& value) { return value.given; }

template <class T, int kPairs>
struct Row {
  static constexpr int kElements = 16 / sizeof(T);  // of a pair
  const RowBlock<T, kPairs>* block;                 // null: of a number
  float v[kPairs][kElements];

  __device__ __forceinline__ explicit Row(const RowBlock<T, kPairs>* of) : block(of) {}
  __device__ __forceinline__ Row(float x) : block(nullptr) {
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; ++e) v[k][e] = x;
  }
  __device__ __forceinline__ Row(const Value& value) : Row(value.number) {}

  template <class F>
  friend __device__ __forceinline__ Row map(const Row& a, const Row& b, F f) {
    Row result(a.block ? a.block : b.block);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; ++e) result.v[k][e] = f(a.v[k][e], b.v[k][e]);
    return result;
  }
  template <class F>
  friend __device__ __forceinline__ Row map(const Row& a, F f) {
    return map(a, a, [&](float x, float) { return f(x); });
  }
  friend __device__ __forceinline__ Row operator+(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x + y; });
  }
  friend __device__ __forceinline__ Row operator-(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x - y; });
  }
  friend __device__ __forceinline__ Row operator*(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x * y; });
  }
  friend __device__ __forceinline__ Row operator/(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return x / y; });
  }
  friend __device__ __forceinline__ Row operator-(const Row& a) {
    return map(a, [](float x) { return -x; });
  }
  friend __device__ __forceinline__ Row abs(const Row& a) {
    return map(a, [](float x) { return fabsf(x); });
  }
  friend __device__ __forceinline__ Row max(const Row& a, const Row& b) {
    return map(a, b, [](float x, float y) { return Most::of(x, y); });
  }
  friend __device__ __forceinline__ Row min(const Row& a, const Row& b) { return -max(-a, -b); }

  // To T, the type of x, and back.
  friend __device__ __forceinline__ Row round(const Row& a) {
    Row result(a.block);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        u32 w[Four<T>::kWords];
        Four<T>::narrow(&a.v[k][e], w);
        Four<T>::widen(w, &result.v[k][e]);
      }
    return result;
  }
  friend __device__ __forceinline__ float sum(const Row& a) {
    return a.block->template across<Added>(a);
  }
  friend __device__ __forceinline__ float max(const Row& a) {
    return a.block->template across<Most>(a);
  }
};
// A number is a number inside an epilogue too, where the names above hide CUDA's.
__device__ __forceinline__ float max(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float min(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ float abs(float a) { return fabsf(a); }

// --- fields

// A row of elements of type E. `kSoon`: a few words are loaded at once; else, and where they would
// take too many registers, when they are asked for.
template <class E, class T, int kPairs, bool kSoon>
struct Input {
  using RowOf = Row<T, kPairs>;
  static constexpr int kWords = Four<E>::kWords * RowOf::kElements / 4;  // of a pair of the row
  static constexpr bool kEarly = kSoon && kPairs * kWords <= 8;
  const RowBlock<T, kPairs>* block;
  const u8* data;
  u32 early[kEarly ? kPairs : 1][kWords];

  __device__ __forceinline__ Input(const RowBlock<T, kPairs>* of, const u8* row)
      : block(of), data(row) {
    if constexpr (kEarly) {
      if (data) block->load_words(data, early);
    }
  }

  // To L2: the first thread of those that share a line asks for it.
  __device__ __forceinline__ void bring_near() const {
    constexpr u32 kLine = 128, kPair = 4 * kWords, kThreads = kPair < kLine ? kLine / kPair : 1;
    if (!data || threadIdx.x % kThreads != 0) return;
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
      if (block->has_pair(k))
        asm volatile("prefetch.global.L2 [%0];" ::"l"(data + block->template place<kPair>(k)));
  }

  friend __device__ __forceinline__ bool has(const Input& input) { return input.data != nullptr; }
  friend __device__ __forceinline__ RowOf load(const Input& input) {
    if constexpr (kEarly) {
      return input.widened(input.early);
    } else {
      u32 words[kPairs][kWords];
      input.block->load_words(input.data, words);
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

// A row, or numbers of it, of elements of type E. What is not given is not written.
template <class E>
struct Output {
  u8* data;

  friend __device__ __forceinline__ bool has(const Output& output) {
    return output.data != nullptr;
  }
  template <class T, int kPairs>
  friend __device__ __forceinline__ void store(const Output& output, const Row<T, kPairs>& row) {
    constexpr int kElements = Row<T, kPairs>::kElements;
    constexpr int kWords = Four<E>::kWords * kElements / 4;
    if (!output.data) return;
    u32 words[kPairs][kWords];
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int e = 0; e < kElements; e += 4)
        Four<E>::narrow(&row.v[k][e], &words[k][e / 4 * Four<E>::kWords]);
    row.block->store_words(output.data, words);
  }
  friend __device__ __forceinline__ void set(const Output& output, float x) {
    if (output.data && threadIdx.x == 0) narrow_to(reinterpret_cast<E*>(output.data), x);
  }
};

// Columns that share a number: as many neighbouring threads hold them.
template <int kColumns, class T, int kPairs>
__device__ __forceinline__ Row<T, kPairs> max_of_groups(const Row<T, kPairs>& a) {
  constexpr int kElements = Row<T, kPairs>::kElements, kLanes = kColumns / kElements;
  static_assert(kLanes > 0 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "lanes of one warp");
  Row<T, kPairs> result(a.block);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    float each[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) each[e] = a.block->has_pair(k) ? a.v[k][e] : Most::none();
    const float most = of_lanes<Most, kLanes>(by_halves<Most>(each));
#pragma unroll
    for (int e = 0; e < kElements; ++e) result.v[k][e] = most;
  }
  return result;
}
// The numbers of such groups, as max_of_groups lays them out.
template <int kColumns, class E, class T, int kPairs>
__device__ __forceinline__ void set_groups(const Output<E>& output, const Row<T, kPairs>& row) {
  constexpr u32 kLanes = kColumns / Row<T, kPairs>::kElements;
  if (!output.data) return;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const u32 pair = row.block->pair(k);
    if (pair % kLanes == 0 && row.block->has_pair(k))
      narrow_to(reinterpret_cast<E*>(output.data) + pair / kLanes, row.v[k][0]);
  }
}

// --- the block that holds a row. Who brings the rows derives from it and adds take().
template <class T, int kPairs>
class RowBlock {
 public:
  using Element = T;
  using Row = commlib::Row<T, kPairs>;
  static constexpr int kElements = Row::kElements;

  __device__ __forceinline__ RowBlock(const Job& job, const Rows& rows, RowBoard* board)
      : job_(job), rows_(rows), board_(board), pairs_(rows.width / kElements) {}

  // --- for epilogues
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, true> input(int field) const {
    return {this, of_row(field)};
  }
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, false> late_input(int field) const {
    return {this, of_row(field)};
  }
  template <class E>
  __device__ __forceinline__ Output<E> output(int field) const {
    return {of_row(field)};
  }
  template <class E>
  __device__ __forceinline__ Value value(int field) const {
    const u8* at = of_row(field);
    return {at != nullptr, at ? widened(reinterpret_cast<const E*>(at)) : 0.f};
  }
  __device__ __forceinline__ float number(int i) const { return rows_.numbers[i]; }
  __device__ __forceinline__ float width() const { return static_cast<float>(rows_.width); }

  // --- for rows
  // This thread's k-th pair of a row, and whether the row is so long.
  __device__ __forceinline__ u32 pair(int k) const { return threadIdx.x + k * kRowThreads; }
  // Where it begins, with `kBytes` for a pair: a sum of which one part is known when this is
  // compiled, and takes no registers.
  template <u32 kBytes>
  __device__ __forceinline__ static u64 place(int k) {
    return u64{threadIdx.x} * kBytes + u64{kRowThreads} * kBytes * k;
  }
  __device__ __forceinline__ bool is_pair(u32 pair) const { return pair < pairs_; }
  // As pair(k) < pairs_, with what is the same for all threads on one side.
  __device__ __forceinline__ bool has_pair(int k) const {
    return static_cast<int>(threadIdx.x) < static_cast<int>(pairs_ - k * kRowThreads);
  }
  // Whether any thread of this warp has a k-th pair.
  __device__ __forceinline__ bool warp_has_pair(int k) const {
    return static_cast<int>(threadIdx.x & ~31u) < static_cast<int>(pairs_ - k * kRowThreads);
  }

  // This thread's words of a row, of kWords for a pair; 0 beyond its end.
  template <int kWords>
  __device__ __forceinline__ void load_words(const u8* row, u32 (&words)[kPairs][kWords]) const {
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[k][i] = 0;
    if (aligned_for<kWords>(row)) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) ld_words(row + place<4 * kWords>(k), words[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) gather_words(row + place<4 * kWords>(k), words[k]);
    }
  }
  template <int kWords>
  __device__ __forceinline__ void store_words(u8* row, const u32 (&words)[kPairs][kWords]) const {
    if (aligned_for<kWords>(row)) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) st_words(row + place<4 * kWords>(k), words[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) spread_words(row + place<4 * kWords>(k), words[k]);
    }
  }

  // Of all elements, in the order above.
  template <class Op>
  __device__ __forceinline__ float across(const Row& row) const {
    float a[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      a[e] = Op::none();
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) a[e] = Op::of(a[e], row.v[k][e]);
    }
    const float mine = of_lanes<Op, 32>(by_halves<Op>(a));
    float* parts = board_->parts[turn_];
    turn_ ^= 1;
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = mine;
    sync_row();
    float all[kRowWarps];
#pragma unroll
    for (int w = 0; w < kRowWarps; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&parts[w]);
      all[w] = four.x, all[w + 1] = four.y, all[w + 2] = four.z, all[w + 3] = four.w;
    }
    return by_halves<Op>(all);
  }

 protected:
  // --- for who brings the rows
  __device__ __forceinline__ void begin(u64 row) { row_ = row; }
  // This rank's own row.
  __device__ __forceinline__ const u8* own_row(u64 row) const {
    return job_.in + static_cast<i64>(row) * rows_.in_stride_bytes;
  }
  // This thread's pairs of it, as they are in memory.
  __device__ __forceinline__ void load_own(u64 row, Pair (&own)[kPairs]) const {
    u32 words[kPairs][4];
    load_words(own_row(row), words);
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
      own[k] = {u64{words[k][1]} << 32 | words[k][0], u64{words[k][3]} << 32 | words[k][2]};
  }
  __device__ __forceinline__ Row unpack(const Pair (&pairs)[kPairs]) const {
    Row row(this);
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const u32 w[4] = {static_cast<u32>(pairs[k].a), static_cast<u32>(pairs[k].a >> 32),
                        static_cast<u32>(pairs[k].b), static_cast<u32>(pairs[k].b >> 32)};
#pragma unroll
      for (int e = 0; e < kElements; e += 4)
        Four<T>::widen(&w[e / 4 * Four<T>::kWords], &row.v[k][e]);
    }
    return row;
  }

  const Job& job_;
  const Rows& rows_;
  u64 row_ = 0;  // that is worked on

 private:
  __device__ __forceinline__ u8* of_row(int field) const {
    const Field& at = rows_.fields[field];
    return at.data ? at.data + static_cast<i64>(row_) * at.stride_bytes : nullptr;
  }
  RowBoard* board_;
  u32 pairs_;
  mutable u32 turn_ = 0;
};

}  // namespace commlib
