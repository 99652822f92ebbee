// push part p to rank p | reduce my part in rank order and push it to all, one step behind | take
// theirs, two steps behind; tiles with one flag each
//
// job.bytes: of the tensor. Nothing is read over the link, and the peers' tensors may be anywhere.
#include "device/stream.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void move(const Stream<N>& stream, const Job& job, const Tiles& tiles) {
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const auto tile = [&](const Span& tensor, int rank, u64 i) {
    return tensor.part(rank * tiles.bytes, tiles.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  u64 post = 0;
  bool good = true;
  for (u64 i = 0; i < steps + 2; ++i) {
    if (i < steps) {
      if (good) {
        push<kPlain>(stream, job, kScatter, i, tiles.pairs(i),
                     [&](int p) { return tile(in, (job.rank + p) % N, i); });
      }
      stream.posted(post++);
    }
    if (i >= 1 && i <= steps) {
      const u64 s = i - 1;
      good = stream.await(kScatter, s);
      if (good) {
        const Span to = tile(out, job.rank, s);
        reduce_tile<kPlain, T, Op>(stream, job, s, tiles.pairs(s), tile(in, job.rank, s),
                                   [&](u32 k, Pair v) {
                                     put<kPlain>(to, k, v);
#pragma unroll
                                     for (int p = 1; p < N; ++p)
                                       stream.slot(kGather, (job.rank + p) % N, job.rank, s)[k] = v;
                                   });
      }
      stream.posted(post++);
    }
    if (i >= 2) {
      const u64 s = i - 2;
      good = stream.await(kGather, s);
      if (!good) continue;
      take_tiles<kPlain>(stream, job, kGather, s, tiles.pairs(s),
                         [&](int r) { return tile(out, r, s); });
    }
  }
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kStreamThreads, 1) lsa_twoshot(const __grid_constant__ Job job) {
  __shared__ StreamBoard board;
  Stream<N> stream(job, &board);
  const Tiles tiles{((job.bytes + N - 1) / N + 15) / 16 * 16, job.tile_bytes};
  if (tiles.steps() == 0) return;
  stream.run(tiles.steps(), 2, [&] {
    if (plain(job, job.bytes) && tiles.bytes * N == job.bytes) {
      move<true, T, Op>(stream, job, tiles);
    } else {
      move<false, T, Op>(stream, job, tiles);
    }
  });
}

}  // namespace commlib
