// push my tile to all | reduce everyone's in rank order, one step behind; tiles with one flag each
//
// job.bytes: of the tensor. Each rank sends its whole tensor to every peer: for two ranks that is
// no more than in two phases.
#include "device/stream.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void move(const Stream<N>& stream, const Job& job, const Tiles& tiles) {
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const u64 steps = tiles.steps();
  bool good = true;
  for (u64 i = 0; i <= steps; ++i) {
    if (i < steps) {
      const Span tile = in.part(tiles.offset(i), tiles.tile_bytes);
      if (good) push_one<kPlain>(stream, job, i, tiles.pairs(i), tile, tile);
      stream.posted(i);
    }
    if (i == 0) continue;
    const u64 s = i - 1, at = tiles.offset(s);
    good = stream.await(kScatter, s);
    if (!good) continue;
    const Span to = out.part(at, tiles.tile_bytes);
    reduce_tile<kPlain, T, Op>(stream, job, s, tiles.pairs(s), in.part(at, tiles.tile_bytes),
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
