// push my tile to all | take everyone's, kDepth steps behind; tiles with one flag each
//
// job.bytes: of one block.
#include "device/bulk.cuh"

namespace commlib {

template <bool kPlain, int N>
__device__ __forceinline__ void move(const TileChannel<N>& channel, const Job& job,
                                     const Tiles& tiles) {
  const Span in(job.in, job.bytes);
  const auto place = [&](int r, u64 i) {
    return Span(job.out + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  for (u64 i = 0; i < steps + kDepth; ++i) {
    if (i < steps) {
      const Span mine = in.part(tiles.offset(i), tiles.tile_bytes), own = place(job.rank, i);
      push_one<kPlain>(channel, job, i, tiles.pairs(i), mine, own);
      channel.posted(i);
    }
    if (i < kDepth) continue;
    if (!channel.await(kScatter, i - kDepth)) return;
    take_tiles<kPlain>(channel, job, kScatter, i - kDepth, tiles.pairs(i - kDepth),
                       [&](int r) { return place(r, i - kDepth); });
  }
}

// By the bulk copy engine: aligned tensors on Hopper and later.
template <int N, bool kHasPoster>
__device__ __forceinline__ void run_bulk(const TileChannel<N>& channel, Bulk<N, kHasPoster>& bulk,
                                         const Job& job, const Tiles& tiles) {
  const auto place = [&](int r, u64 i) {
    return Span(job.out + r * job.bytes + tiles.offset(i), tiles.pairs(i) * 16);
  };
  const u64 steps = tiles.steps();
  const auto bytes = [&](u64 i, int = 0) { return tiles.pairs(i) * 16; };
  const auto move = [&] {
    for (u64 i = 0; i < steps; ++i) {
      const Span mine(job.in + tiles.offset(i), tiles.pairs(i) * 16), own = place(job.rank, i);
      if (mine.data != own.data) copy<true>(channel, tiles.pairs(i), mine, own);
      if (!channel.await(kScatter, i)) return;
      take_tiles<true>(channel, job, kScatter, i, tiles.pairs(i),
                       [&](int r) { return place(r, i); });
      bulk.end_turn(i);
    }
  };
  const auto send = [&] {
    bulk.template send_all<1>(steps, [&](u64 i, int) { return job.in + tiles.offset(i); }, bytes);
  };
  bulk.run(steps, 1, move, send, [] {});
}

template <int N>
__global__ void __launch_bounds__(kTileThreads, 1) lsa_oneshot(const __grid_constant__ Job job) {
  const Tiles tiles{job.bytes, job.tile_bytes};
  run_tiles<N, (N > 2)>(
      job, tiles.steps(), 1, are_aligned(job, job.bytes),
      [&](const TileChannel<N>& channel, Bulk<N, (N > 2)>& bulk) {
        run_bulk(channel, bulk, job, tiles);
      },
      [&](const TileChannel<N>& channel) { move<true>(channel, job, tiles); },
      [&](const TileChannel<N>& channel) { move<false>(channel, job, tiles); });
}

}  // namespace commlib
