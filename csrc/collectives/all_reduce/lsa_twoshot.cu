// push part p to rank p | reduce my part in rank order and push it to all, kDepth steps behind |
// take theirs, twice as far behind; tiles with one flag each
//
// job.bytes: of the tensor. Nothing is read over the link, and the peers' tensors may be anywhere.
#include "device/bulk.cuh"

namespace commlib {

template <bool kPlain, class T, class Op, int N>
__device__ __forceinline__ void move(const TileChannel<N>& channel, const Job& job,
                                     const Tiles& tiles) {
  const Span in(job.in, job.bytes), out(job.out, job.bytes);
  const auto tile = [&](const Span& tensor, int rank, u64 i) {
    return tensor.part(rank * tiles.bytes, tiles.bytes).part(tiles.offset(i), tiles.tile_bytes);
  };
  const u64 steps = tiles.steps();
  u64 post = 0;
  for (u64 i = 0; i < steps + 2 * kDepth; ++i) {
    if (i < steps) {
      push<kPlain>(channel, job, kScatter, i, tiles.pairs(i),
                   [&](int p) { return tile(in, (job.rank + p) % N, i); });
      channel.posted(post++);
    }
    if (i >= kDepth && i < steps + kDepth) {
      const u64 s = i - kDepth;
      if (!channel.await(kScatter, s)) return;
      const Span to = tile(out, job.rank, s);
      reduce_tile<kPlain, T, Op>(channel, job, s, tiles.pairs(s), tile(in, job.rank, s),
                                 [&](u32 k, Pair v) {
                                   put<kPlain>(to, k, v);
#pragma unroll
                                   for (int p = 1; p < N; ++p)
                                     channel.slot(kGather, (job.rank + p) % N, job.rank, s)[k] = v;
                                 });
      channel.posted(post++);
    }
    if (i >= 2 * kDepth) {
      const u64 s = i - 2 * kDepth;
      if (!channel.await(kGather, s)) return;
      take_tiles<kPlain>(channel, job, kGather, s, tiles.pairs(s),
                         [&](int r) { return tile(out, r, s); });
    }
  }
}

// By the bulk copy engine: aligned tensors on Hopper and later.
template <class T, class Op, int N, bool kHasPoster>
__device__ __forceinline__ void run_bulk(const TileChannel<N>& channel, Bulk<N, kHasPoster>& bulk,
                                         const Job& job, const Tiles& tiles) {
  const auto tile = [&](const u8* tensor, int r, u64 i) {
    return Span(tensor + r * tiles.bytes + tiles.offset(i), tiles.pairs(i) * 16);
  };
  const u64 steps = tiles.steps();
  const auto bytes = [&](u64 i, int = 0) { return tiles.pairs(i) * 16; };
  const auto move = [&] {
    for (u64 i = 0; i < steps + kDepth; ++i) {
      if (i < steps) {
        if (!channel.await(kScatter, i) || !bulk.await_room(i)) return;
        const Span to = tile(job.out, job.rank, i);
        Pair* result = bulk.result(i);
        reduce_tile<true, T, Op>(channel, job, i, tiles.pairs(i), tile(job.in, job.rank, i),
                                 [&](u32 k, Pair v) {
                                   put<true>(to, k, v);
                                   result[k] = v;
                                 });
        bulk.end_result(i);
      }
      if (i >= kDepth) {
        const u64 s = i - kDepth;
        if (!channel.await(kGather, s) || !bulk.await_loaded(s)) return;
        take_tiles<true>(channel, job, kGather, s, tiles.pairs(s),
                         [&](int r) { return tile(job.out, r, s); });
      }
      bulk.end_turn(i);
    }
  };
  const auto send = [&] {
    bulk.template send_all<(N > 1 ? N - 1 : 1)>(
        steps, [&](u64 i, int p) { return tile(job.in, (job.rank + p) % N, i).data; }, bytes);
  };
  bulk.run(steps, 2, move, send, [&] { bulk.return_all(steps, bytes); });
}

template <class T, class Op, int N>
__global__ void __launch_bounds__(kTileThreads, 1) lsa_twoshot(const __grid_constant__ Job job) {
  const Tiles tiles{((job.bytes + N - 1) / N + 15) / 16 * 16, job.tile_bytes};
  run_tiles<N, true>(
      job, tiles.steps(), 2, are_aligned(job, job.bytes) && tiles.bytes * N == job.bytes,
      [&](const TileChannel<N>& channel, Bulk<N, true>& bulk) {
        run_bulk<T, Op>(channel, bulk, job, tiles);
      },
      [&](const TileChannel<N>& channel) { move<true, T, Op>(channel, job, tiles); },
      [&](const TileChannel<N>& channel) { move<false, T, Op>(channel, job, tiles); });
}

}  // namespace commlib
