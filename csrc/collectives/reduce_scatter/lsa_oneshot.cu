// push tile of block p to rank p | reduce my tile in rank order, kDepth steps behind; tiles with
// one flag each
//
// job.bytes: of one block.
#include "device/bulk.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void move(const TileChannel<N>& channel, const Job& job,
                                     const Tiles& tiles) {
  const Span out(job.out, job.bytes);
  const auto tile = [&](int r, u64 i) {
    return Span(job.in + r * job.bytes, job.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  for (u64 i = 0; i < steps + kDepth; ++i) {
    if (i < steps) {
      push<kPlain>(channel, job, kScatter, i, tiles.pairs(i),
                   [&](int p) { return tile((job.rank + p) % N, i); });
      channel.posted(i);
    }
    if (i < kDepth) continue;
    const u64 s = i - kDepth;
    if (!channel.await(kScatter, s)) return;
    const Span to = out.part(tiles.offset(s), tiles.tile_bytes);
    reduce_tile<kPlain, T, Op>(channel, job, s, tiles.pairs(s), tile(job.rank, s),
                               [&](u32 k, Pair v) { put<kPlain>(to, k, v); });
  }
}

// By the bulk copy engine: aligned tensors on Hopper and later.
template <class T, class Op, int N, bool kHasPoster>
__device__ __forceinline__ void run_bulk(const TileChannel<N>& channel, Bulk<N, kHasPoster>& bulk,
                                         const Job& job, const Tiles& tiles) {
  const Span out(job.out, job.bytes);
  const auto tile = [&](int r, u64 i) {
    return Span(job.in + r * job.bytes + tiles.offset(i), tiles.pairs(i) * 16);
  };
  const u64 steps = tiles.steps();
  const auto bytes = [&](u64 i, int = 0) { return tiles.pairs(i) * 16; };
  const auto move = [&] {
    for (u64 i = 0; i < steps; ++i) {
      if (!channel.await(kScatter, i)) return;
      const Span to = out.part(tiles.offset(i), tiles.tile_bytes);
      reduce_tile<true, T, Op>(channel, job, i, tiles.pairs(i), tile(job.rank, i),
                               [&](u32 k, Pair v) { put<true>(to, k, v); });
      bulk.end_turn(i);
    }
  };
  const auto send = [&] {
    bulk.template send_all<(N > 1 ? N - 1 : 1)>(
        steps, [&](u64 i, int p) { return tile((job.rank + p) % N, i).data; }, bytes);
  };
  bulk.run(steps, 1, move, send, [] {});
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kTileThreads, 1) lsa_oneshot(const __grid_constant__ Job job) {
  const Tiles tiles{job.bytes, job.tile_bytes};
  run_tiles<N, (N > 2)>(
      job, tiles.steps(), 1, are_aligned(job, job.bytes),
      [&](const TileChannel<N>& channel, Bulk<N, (N > 2)>& bulk) {
        run_bulk<T, Op>(channel, bulk, job, tiles);
      },
      [&](const TileChannel<N>& channel) { move<true, T, Op>(channel, job, tiles); },
      [&](const TileChannel<N>& channel) { move<false, T, Op>(channel, job, tiles); });
}

}  // namespace commlib
