// push tile of block p to rank p | take everyone's tile for me, one step behind; tiles with one
// flag each
//
// job.bytes: of one block. Not in place: a peer's tile would lie where mine for it is still to be
// read.
#include "device/stream.cuh"

namespace commlib {

template <bool kPlain, int N>
__device__ __forceinline__ void move(const Stream<N>& stream, const Job& job, const Tiles& tiles) {
  const auto tile = [&](const u8* tensor, int r, u64 i) {
    return Span(tensor + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  bool good = true;
  for (u64 i = 0; i <= steps; ++i) {
    if (i < steps) {
      if (good) {
        push<kPlain>(stream, job, kScatter, i, tiles.pairs(i),
                     [&](int p) { return tile(job.in, (job.rank + p) % N, i); });
        copy<kPlain>(stream, tiles.pairs(i), tile(job.in, job.rank, i), tile(job.out, job.rank, i));
      }
      stream.posted(i);
    }
    if (i == 0) continue;
    good = stream.await(kScatter, i - 1);
    if (!good) continue;
    take_tiles<kPlain>(stream, job, kScatter, i - 1, tiles.pairs(i - 1),
                       [&](int r) { return tile(job.out, r, i - 1); });
  }
}

template <int N>
__global__ void __launch_bounds__(kStreamThreads, 1) lsa_oneshot(const __grid_constant__ Job job) {
  __shared__ StreamBoard board;
  Stream<N> stream(job, &board);
  const Tiles tiles{job.bytes, job.tile_bytes};
  stream.run(tiles.steps(), 1, [&] {
    if (plain(job, job.bytes)) {
      move<true>(stream, job, tiles);
    } else {
      move<false>(stream, job, tiles);
    }
  });
}

}  // namespace commlib
