// push my tile to all | take everyone's, one step behind; tiles with one flag each
//
// job.bytes: of one block.
#include "device/stream.cuh"

namespace commlib {

template <bool kPlain, int N>
__device__ __forceinline__ void move(const Stream<N>& stream, const Job& job, const Tiles& tiles) {
  const Span in(job.in, job.bytes);
  const auto place = [&](int r, u64 i) {
    return Span(job.out + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  bool good = true;
  for (u64 i = 0; i <= steps; ++i) {
    if (i < steps) {
      const Span mine = in.part(tiles.offset(i), tiles.tile_bytes), own = place(job.rank, i);
      if (good) push_one<kPlain>(stream, job, i, tiles.pairs(i), mine, own);
      stream.posted(i);
    }
    if (i == 0) continue;
    good = stream.await(kScatter, i - 1);
    if (!good) continue;
    take_tiles<kPlain>(stream, job, kScatter, i - 1, tiles.pairs(i - 1),
                       [&](int r) { return place(r, i - 1); });
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
