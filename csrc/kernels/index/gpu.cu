// Row gather on a GPU: cut each row into pieces | a group of threads finds its row | loads its
// piece, or zeros, and stores it.
//
// A piece is kLanes * kLoads words of kWidth bytes: so few that a single row keeps many
// multiprocessors busy, and the loads of a thread are all under way before its first store. Rows,
// strides and addresses are multiples of kWidth. Cost: two dependent reads of memory, and the
// bytes.
#include "device/memory.cuh"
#include "device/words.cuh"
#include "kernels/index/job.h"

namespace commlib::kernels {

__device__ __forceinline__ i64 id_of(const IndexJob& job, i64 i) {
  return job.wide ? static_cast<const i64*>(job.ids)[i]
                  : static_cast<i64>(static_cast<const i32*>(job.ids)[i]);
}

// The wrapped difference makes one compare of two: see Table::find of host.h.
__device__ __forceinline__ bool find_row(const IndexJob& job, i64 id, u64* row) {
  *row = static_cast<u64>(id) - static_cast<u64>(job.start);
  return *row < job.length;
}

template <int kLanes, int kLoads, int kWidth>
__global__ void __launch_bounds__(128) index(const __grid_constant__ IndexJob job) {
  using Word = typename WordOf<kWidth>::Type;
  constexpr u32 kPiece = kLanes * kLoads;  // words
  let_next_start();
  wait_for_stream();
  const u32 words = static_cast<u32>(job.row_bytes / kWidth);
  const u32 pieces = words > kPiece ? (words + kPiece - 1) / kPiece : 1;
  const u32 group = blockIdx.x * (128 / kLanes) + threadIdx.x / kLanes;
  const u32 i = group / pieces, piece = group - i * pieces;
  if (i >= job.count) return;

  u64 row;
  const bool inside = find_row(job, id_of(job, i), &row);
  const u32 at = piece * kPiece + threadIdx.x % kLanes;
  const u8* from = job.table + row * job.stride_bytes;
  u8* to = job.out + u64{i} * job.row_bytes;
  Word word[kLoads];
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const u32 w = at + k * kLanes;
    word[k] = inside && w < words ? ld_word<Word>(from + u64{w} * kWidth) : Word{};
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const u32 w = at + k * kLanes;
    if (w < words) st_word(to + u64{w} * kWidth, word[k]);
  }
  if (!inside && job.counter && piece == 0 && threadIdx.x % kLanes == 0)
    atomicAdd(job.counter, 1ull);
}

// Only looks: the position of the first id outside, which starts as the largest u64.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) first_outside(const __grid_constant__ IndexJob job) {
  wait_for_stream();
  for (i64 i = i64{blockIdx.x} * kThreads + threadIdx.x; i < job.count;
       i += i64{gridDim.x} * kThreads) {
    u64 row;
    if (!find_row(job, id_of(job, i), &row)) atomicMin(job.first_bad, static_cast<u64>(i));
  }
}

}  // namespace commlib::kernels
