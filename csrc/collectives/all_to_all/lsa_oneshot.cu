// push tile of block p to rank p | take everyone's tile for me, kDepth steps behind; tiles with one
// flag each
//
// job.bytes: of one block. In place is fine: who writes a pair is who read it, kDepth steps before.
#include "device/bulk.cuh"

namespace commlib {

template <bool kPlain, int N>
__device__ __forceinline__ void move(const TileChannel<N>& channel, const Job& job,
                                     const Tiles& tiles) {
  const auto tile = [&](const u8* tensor, int r, u64 i) {
    return Span(tensor + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  for (u64 i = 0; i < steps + kDepth; ++i) {
    if (i < steps) {
      push<kPlain>(channel, job, kScatter, i, tiles.pairs(i),
                   [&](int p) { return tile(job.in, (job.rank + p) % N, i); });
      copy<kPlain>(channel, tiles.pairs(i), tile(job.in, job.rank, i), tile(job.out, job.rank, i));
      channel.posted(i);
    }
    if (i < kDepth) continue;
    if (!channel.await(kScatter, i - kDepth)) return;
    take_tiles<kPlain>(channel, job, kScatter, i - kDepth, tiles.pairs(i - kDepth),
                       [&](int r) { return tile(job.out, r, i - kDepth); });
  }
}

// By the bulk copy engine: aligned tensors on Hopper and later.
template <int N, bool kHasPoster>
__device__ __forceinline__ void run_bulk(const TileChannel<N>& channel, Bulk<N, kHasPoster>& bulk,
                                         const Job& job, const Tiles& tiles) {
  const auto tile = [&](const u8* tensor, int r, u64 i) {
    return Span(tensor + r * job.bytes + tiles.offset(i), tiles.pairs(i) * 16);
  };
  const u64 steps = tiles.steps();
  const auto bytes = [&](u64 i, int = 0) { return tiles.pairs(i) * 16; };
  const auto move = [&] {
    for (u64 i = 0; i < steps; ++i) {
      copy<true>(channel, tiles.pairs(i), tile(job.in, job.rank, i), tile(job.out, job.rank, i));
      if (!channel.await(kScatter, i) || !bulk.await_loaded(i)) return;
      take_tiles<true>(channel, job, kScatter, i, tiles.pairs(i),
                       [&](int r) { return tile(job.out, r, i); });
      bulk.end_turn(i);
    }
  };
  const auto send = [&] {
    bulk.template send_all<(N > 1 ? N - 1 : 1)>(
        steps, [&](u64 i, int p) { return tile(job.in, (job.rank + p) % N, i).data; }, bytes);
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
