// Rows in registers, and the epilogues that work on them.
//
// A block of kRowThreads threads holds a row: thread t has its pairs of words t, t + kRowThreads,
// …, as float. Or the blocks of a cluster hold it, so many threads together. An epilogue gets the
// sum of all ranks' rows, rounded to their type T, and reads and writes fields of Rows, each bound
// to its type and index. It is a struct of this form, whose middle is the epilogue proper; here h =
// x + residual, out = h * weight / largest |h|:
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
//         const float peak = max(abs(h)) + eps;
//         store(out, h * load(weight) * (limit / peak));
//         set(largest, peak);
//       }
//     }
//   };
//
// Every binding stands before take(): what it loads is on its way while the block waits for peers.
// `late_input` is an input that is seldom there: it is loaded when asked for, and takes no
// registers before. The middle runs on all kRowThreads threads alike: sum(), max() of a row and
// those of groups need them all, so no thread may pass one by, or return before the end.
//
//   Row x Row, Row x number   + - * /  min(a, b)  max(a, b)
//   of each element           -row  abs(row)  map(row, f)  map(a, b, f)  round(row): to T and back
//   of the row                sum(row)  max(row)  sum_and_max(a, b): .sum of a and .max of b at
//   once of each 128 columns       sum_of_groups<128>(row), max_of_groups<128>(row): a Row that has
//   it in
//                             every element
//   fields                    has(field)  load(input): 0 where it is missing
//                             store(output, row): rounded, or saturated; nothing if missing
//                             set(output, number)  set_groups<128>(output, row)
//   of CUDA                   sqrtf, expf, … on numbers, and inside map
//
// A row's bits depend on that row alone. Where a sum has an order, the width and T give it: each
// thread adds up its pairs one after the other, element by element, then the sums of its elements
// by halves, then the lanes by halves, then the warps by halves; whatever lies beyond the width
// adds nothing. `max` has no order; NaN wins in it.
//
// In place is fine, since the thread that writes an element of a row is the one that has read it;
// an epilogue loads what an output replaces before it stores that output.
#pragma once

#include "device/row_fields.cuh"

namespace commlib {

// The block that holds a row. Who brings the rows derives from it and adds take().
template <class T, int kPairs>
class RowBlock {
 public:
  using Element = T;
  using Row = commlib::Row<T, kPairs>;
  static constexpr int kOfPairs = kPairs, kElements = Row::kElements;

  // `aligned`: as Rows::aligned has it. `blocks` of a cluster hold a row.
  __device__ __forceinline__ RowBlock(const Job& job, const Rows& rows, RowBoard* board,
                                      bool aligned, u32 blocks = 1)
      : job_(job),
        rows_(rows),
        aligned_(aligned),
        blocks_(blocks),
        before_(blocks > 1 ? rank_in_cluster() * (kRowThreads / blocks) : 0),
        board_(board),
        pairs_(rows.width / kElements) {}

  // --- for epilogues
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, true> input(int field) const {
    return {this, field};
  }
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, false> late_input(int field) const {
    return {this, field};
  }
  template <class E>
  __device__ __forceinline__ Output<E, T, kPairs> output(int field) const {
    return {this, field};
  }
  template <class E>
  __device__ __forceinline__ Value value(int field) const {
    if (!has(field)) return {false, 0.f};
    return {true, widened(reinterpret_cast<const E*>(of_row(field)))};
  }
  __device__ __forceinline__ float number(int i) const { return rows_.numbers[i]; }
  __device__ __forceinline__ float width() const { return static_cast<float>(rows_.width); }

  // --- for rows
  __device__ __forceinline__ bool has(int field) const { return rows_.fields[field].data; }
  __device__ __forceinline__ u8* of_row(int field) const {
    const Field& at = rows_.fields[field];
    return at.data + static_cast<i64>(row_) * at.stride_bytes;
  }
  // Of the threads that hold a row.
  __device__ __forceinline__ u32 thread() const { return threadIdx.x + before_; }
  // This thread's k-th pair of a row, and whether the row is so long.
  __device__ __forceinline__ u32 pair(int k) const { return thread() + k * kRowThreads; }
  // Where it begins, with `kBytes` for a pair: a sum of which one part is known when this is
  // compiled, and takes no registers.
  template <u32 kBytes>
  __device__ __forceinline__ u64 place(int k) const {
    return u64{thread()} * kBytes + u64{kRowThreads} * kBytes * k;
  }
  __device__ __forceinline__ bool is_pair(u32 pair) const { return pair < pairs_; }
  // As pair(k) < pairs_, with what is the same for all threads on one side.
  __device__ __forceinline__ bool has_pair(int k) const {
    return static_cast<int>(thread()) < static_cast<int>(pairs_ - k * kRowThreads);
  }
  // Whether any thread of this warp has a k-th pair.
  __device__ __forceinline__ bool warp_has_pair(int k) const {
    return static_cast<int>(thread() & ~31u) < static_cast<int>(pairs_ - k * kRowThreads);
  }
  // Whether what is stored is written: not when the call has failed.
  __device__ __forceinline__ bool writes() const { return !failed_; }

  // This thread's words of a row, of kWords for a pair; 0 beyond its end.
  template <int kWords>
  __device__ __forceinline__ void load_words(const u8* row, u32 (&words)[kPairs][kWords]) const {
#pragma unroll
    for (int k = 0; k < kPairs; ++k)
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[k][i] = 0;
    if (aligned_ || aligned_for<kWords>(row)) {
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
    if (!writes()) return;
    if (aligned_ || aligned_for<kWords>(row)) {
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
    const float mine[] = {of_warp<Op>(row)};
    return of_warps<Op>(exchange(mine)[0]);
  }
  __device__ __forceinline__ SumAndMax sum_and_max(const Row& a, const Row& b) const {
    const float mine[] = {of_warp<Added>(a), of_warp<Larger>(b)};
    const auto& parts = exchange(mine);
    return {of_warps<Added>(parts[0]), of_warps<Larger>(parts[1])};
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
  const bool aligned_;
  const u32 blocks_, before_;  // threads of the blocks before this one
  u64 row_ = 0;                // that is worked on
  bool failed_ = false;        // the call, in a block that stays for the others of its cluster

 private:
  template <class Op>
  __device__ __forceinline__ float of_warp(const Row& row) const {
    float a[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      a[e] = Op::none();
#pragma unroll
      for (int k = 0; k < kPairs; ++k)
        if (has_pair(k)) a[e] = Op::of(a[e], row.v[k][e]);
    }
    return of_lanes<Op, 32>(by_halves<Op>(a));
  }
  template <class Op>
  __device__ __forceinline__ static float of_warps(const float (&parts)[kRowWarps]) {
    float all[kRowWarps];
#pragma unroll
    for (int w = 0; w < kRowWarps; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&parts[w]);
      all[w] = four.x, all[w + 1] = four.y, all[w + 2] = four.z, all[w + 3] = four.w;
    }
    return by_halves<Op>(all);
  }
  // What each warp has goes to its places in every block that holds the row; all are there now.
  template <int kValues>
  __device__ __forceinline__ const RowParts& exchange(const float (&of_warp)[kValues]) const {
    RowParts& parts = board_->parts[turn_ & 1];
    u64* came = &board_->came[turn_ & 1];
    const u32 lane = threadIdx.x & 31, warp = thread() / 32;
    if (blocks_ > 1 && threadIdx.x == 0) expect_bytes(kValues * sizeof(parts[0]), came);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (blocks_ > 1 && lane < blocks_) send_in_cluster(lane, &parts[i][warp], came, of_warp[i]);
      if (blocks_ == 1 && lane == 0) parts[i][warp] = of_warp[i];
    }
    if (blocks_ > 1)
      await_bytes(came, turn_ >> 1 & 1);
    else
      sync_row(kRowThreads);
    ++turn_;
    return parts;
  }

  RowBoard* board_;
  u32 pairs_;
  mutable u32 turn_ = 0;
};

// What a kernel of `AllRows`, a RowBlock, does. Rows that are aligned have code of their own where
// there are registers for it; both in one function would take more.
template <class AllRows, class Epilogue>
__device__ __noinline__ void run_unaligned(const Job& job, const Rows& rows, RowBoard* board) {
  AllRows(job, rows, board, false).template run<Epilogue>();
}
template <class AllRows, class Epilogue>
__device__ __forceinline__ void run_rows(const Job& job, const Rows& rows) {
  __shared__ RowBoard board;
  if constexpr (AllRows::kOfPairs > 2) {
    AllRows(job, rows, &board, false).template run<Epilogue>();
  } else if (rows.aligned) {
    AllRows(job, rows, &board, true).template run<Epilogue>();
  } else {
    run_unaligned<AllRows, Epilogue>(job, rows, &board);
  }
}

}  // namespace commlib
