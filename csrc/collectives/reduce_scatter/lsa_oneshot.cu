// push tile of block p to rank p | reduce my tile in rank order, one step behind; tiles with one
// flag each
//
// job.bytes: of one block.
#include "device/stream.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void move(const Stream<N>& stream, const Job& job, const Tiles& tiles) {
  const Span out(job.out, job.bytes);
  const auto tile = [&](int r, u64 i) {
    return Span(job.in + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  bool good = true;
  for (u64 i = 0; i <= steps; ++i) {
    if (i < steps) {
      if (good) {
        push<kPlain>(stream, job, kScatter, i, tiles.pairs(i),
                     [&](int p) { return tile((job.rank + p) % N, i); });
      }
      stream.posted(i);
    }
    if (i == 0) continue;
    const u64 s = i - 1;
    good = stream.await(kScatter, s);
    if (!good) continue;
    const Span to = out.part(tiles.offset(s), tiles.tile_bytes);
    reduce_tile<kPlain, T, Op>(stream, job, s, tiles.pairs(s), tile(job.rank, s),
                               [&](u32 k, Pair v) { put<kPlain>(to, k, v); });
  }
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kStreamThreads, 1) lsa_oneshot(const __grid_constant__ Job job) {
  __shared__ StreamBoard board;
  Stream<N> stream(job, &board);
  const Tiles tiles{job.bytes, job.tile_bytes};
  stream.run(tiles.steps(), 1, [&] {
    if (plain(job, job.bytes)) {
      move<true, T, Op>(stream, job, tiles);
    } else {
      move<false, T, Op>(stream, job, tiles);
    }
  });
}

}  // namespace commlib
