// Tiles that travel by the bulk copy engine of Hopper: memory → shared memory → peer.
//
//   sender    lane that copies my tiles to the peers
//   returner  lane that copies what the movers reduced to the peers
//   poster    lane that tells the peers what was written: no copy waits for its fences
//   watcher   sees what peers have posted (device/tiles.cuh)
//   movers    reduce, or take, the tiles that came; a turn is what they do with one step
//
// Shared memory holds kRing tiles on their way out and kResults that the movers fill. The protocol
// is that of device/tiles.cuh: before the sender copies step s, the movers have ended turn
// s - kDepth - 1.
#pragma once

#include "device/bulk_copy.cuh"
#include "device/tiles.cuh"

namespace commlib {

constexpr int kRing = 4;
constexpr int kResults = 2;
// Copies to one peer each that a lane has on their way while it asks for the next: as many as fill
// the link.
constexpr int kFlight = 3;

// A block wants as many tiles of shared memory as this has bytes: the host asks the loaded module.
extern "C" {
__device__ u8 commlib_shared_tiles[kRing + kResults];
}

// --- the roles

struct BulkBoard {
  u64 full[kRing];
  u32 turns[kPosts];     // movers' warps that have ended a turn
  u32 results[kPosts];   // movers' warps that have put their part into a result
  u32 written[kStages];  // steps whose copies are with the peers: to be posted
  u32 loaded;            // steps that the sender has read: movers may write over them
  u32 returned;          // results whose shared memory is free again
};

// `kHasPoster`: else the sender posts, and waits for its fences. With one peer, and nothing to
// return, that costs the link nothing, and less is on its way when the last tile has left.
template <int N, bool kHasPoster>
class Bulk {
 public:
  __device__ Bulk(const TileChannel<N>& channel, const Job& job, BulkBoard* board, u8* shared)
      : channel_(channel), job_(job), board_(board), shared_(shared) {
    for (u32 i = threadIdx.x; i < sizeof(BulkBoard) / sizeof(u32); i += blockDim.x)
      reinterpret_cast<u32*>(board)[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kRing; ++i) barrier_init(&board->full[i]);
      fence_shared_async();
    }
    __syncthreads();
  }

  // Runs `move` on the movers, each of the others on a warp of its own.
  template <class Move, class Send, class Return>
  __device__ __forceinline__ void run(u64 steps, int stages, Move move, Send send,
                                      Return give_back) {
    channel_.run(steps, stages, move, [&](u32 helper) {
      if (helper == 1) send();
      if (helper == 2) give_back();
      if (kHasPoster && helper == 3) post_all(steps, stages);
    });
  }

  // Sends `kItems` tiles for each step: one to all peers, or one to each. `from(i, k)` is the tile
  // for the k-th rank after this one, of bytes(i, k).
  template <int kItems, class From, class Bytes>
  __device__ __forceinline__ void send_all(u64 steps, From from, Bytes bytes) {
    if ((threadIdx.x & 31) != 0) return;
    mark<kSender>(Phase::publish);
    const u64 items = steps * kItems;
    u64 step = 0, written = 0;
    int k = 0;
    u64 q = 0, asked = 0;  // items taken out of the ring, items on their way into it
    const auto load = [&] {
      const u64 i = asked / kItems;
      const int to = turn_of(static_cast<int>(asked % kItems));
      bulk_load(ring(asked), from(i, to), bytes(i, to), &board_->full[asked % kRing]);
      ++asked;
    };
    while (asked < kRing - 1 && asked < items) load();
    for (; q < items; ++q) {
      if (k == 0 && step > kDepth) {
        u32* turn = &board_->turns[(step - kDepth - 1) % kPosts];
        if (written < step && !counted(turn)) publish_written<0>(kScatter, written = step);
        mark<kSender>(Phase::wait);
        if (!await_count(turn)) break;
        mark<kSender>(Phase::publish);
      }
      await_item(q);
      if (k == kItems - 1) publish(&board_->loaded, step + 1);
      constexpr int kPeers = kItems > 1 ? 1 : N - 1;  // that this item goes to
#pragma unroll
      for (int p = 0; p < kPeers; ++p) {
        const int to = turn_of(k + p), peer = (job_.rank + to) % N;
        bulk_store(channel_.slot(kScatter, peer, job_.rank, step), ring(q), bytes(step, to));
      }
      bulk_commit();
      if (asked < items) {
        await_read<1>();
        load();
      }
      constexpr int kMax = kItems > 1 ? kFlight : 1;
      if (q >= kMax && (q + 1 - kMax) / kItems > written) {
        publish_written<kMax>(kScatter, written = (q + 1 - kMax) / kItems);
      } else {
        await_written<kMax>();
      }
      if (++k < kItems) continue;
      k = 0;
      ++step;
    }
    // No copy may outlive the block whose memory it uses.
    for (; q < asked; ++q) await_item(q);
    if (written < step) publish_written<0>(kScatter, step);
    await_written<0>();
    mark<kSender>(Phase::over);
  }

  // Sends the movers' results to all peers.
  template <class Bytes>
  __device__ __forceinline__ void return_all(u64 steps, Bytes bytes) {
    if ((threadIdx.x & 31) != 0) return;
    u64 step = 0, written = 0;
    while (step < steps) {
      u32* ready = &board_->results[step % kPosts];
      if (written < step && !counted(ready)) publish_written<0>(kGather, written = step);
      if (!await_count(ready)) break;
#pragma unroll
      for (int p = 0; p < N - 1; ++p) {
        const int peer = (job_.rank + turn_of(p)) % N;
        bulk_store(channel_.slot(kGather, peer, job_.rank, step), result(step), bytes(step));
      }
      bulk_commit();
      ++step;
      await_read<0>();
      publish(&board_->returned, step);
      if (written + 1 < step) publish_written<1>(kGather, written = step - 1);
    }
    if (written < step) publish_written<0>(kGather, step);
  }

  // --- movers
  // My warp has ended turn i.
  __device__ __forceinline__ void end_turn(u64 i) const { arrive(&board_->turns[i % kPosts]); }
  // My warp's part of result i is in shared memory.
  __device__ __forceinline__ void end_result(u64 i) const {
    fence_shared_async();
    arrive(&board_->results[i % kPosts]);
  }
  // Tiles up to step i were read by the sender; the memory of result i is free. False: all is over.
  __device__ __forceinline__ bool await_loaded(u64 i) const {
    return await_above(&board_->loaded, i);
  }
  __device__ __forceinline__ bool await_room(u64 i) const {
    return i < kResults || await_above(&board_->returned, i - kResults);
  }
  __device__ __forceinline__ Pair* result(u64 i) const {
    return reinterpret_cast<Pair*>(shared_ + (kRing + i % kResults) * job_.tile_bytes);
  }

 private:
  // Which rank after this one comes k-th. Blocks take turns: what all send at a time is for all.
  static __device__ __forceinline__ int turn_of(int k) {
    return N > 2 ? 1 + (k + static_cast<int>(blockIdx.x)) % (N - 1) : 1;
  }
  __device__ __forceinline__ u8* ring(u64 q) const { return shared_ + q % kRing * job_.tile_bytes; }
  // All my copies but the newest n groups are written: `steps` steps in all.
  template <int n>
  __device__ __forceinline__ void publish_written(Stage stage, u64 steps) const {
    await_written<n>();
    if (kHasPoster) {
      publish(&board_->written[stage], steps);
    } else {
      channel_.flag_step(stage, steps - 1);
    }
  }
  __device__ __forceinline__ void post_all(u64 steps, int stages) const {
    if ((threadIdx.x & 31) != 0) return;
    u32 posted[kStages] = {};
    while (posted[kScatter] < steps || (stages == 2 && posted[kGather] < steps)) {
      const bool over = channel_.over();
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        const u32 now = *const_cast<const volatile u32*>(&board_->written[stage]);
        if (now == posted[stage]) continue;
        __threadfence_block();
        channel_.flag_step(static_cast<Stage>(stage), now - 1);
        posted[stage] = now;
      }
      if (over) return;
    }
  }
  __device__ __forceinline__ void await_item(u64 q) const {
    await_bytes(&board_->full[q % kRing], static_cast<u32>(q / kRing & 1));
  }
  __device__ __forceinline__ void arrive(u32* counter) const {
    __threadfence_block();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) atomicAdd(counter, 1u);
  }
  static __device__ __forceinline__ void publish(u32* word, u64 value) {
    __threadfence_block();
    *const_cast<volatile u32*>(word) = static_cast<u32>(value);
  }
  __device__ __forceinline__ bool await_above(const u32* word, u64 value) const {
    mark(Phase::wait);
    while (*const_cast<const volatile u32*>(word) <= value) {
      if (channel_.over()) return false;
    }
    __threadfence_block();
    mark(Phase::copy);
    return true;
  }
  // Until all movers' warps have arrived; the counter is then free for a later one.
  __device__ __forceinline__ bool await_count(u32* counter) const {
    while (!counted(counter)) {
      if (channel_.over()) return false;
    }
    *const_cast<volatile u32*>(counter) = 0;
    __threadfence_block();
    return true;
  }
  __device__ __forceinline__ bool counted(const u32* counter) const {
    return *const_cast<const volatile u32*>(counter) == channel_.movers() / 32;
  }

  const TileChannel<N>& channel_;
  const Job& job_;
  BulkBoard* board_;
  u8* shared_;
};

// The whole of a kernel that moves tiles. For tensors that are `plain`: `by_bulk(channel, bulk)`,
// or where the GPU has no such engine each mover does `by_pairs(channel)`; for others
// `by_bytes(channel)`.
template <int N, bool kHasPoster, class ByBulk, class ByPairs, class ByBytes>
__device__ __forceinline__ void run_tiles(const Job& job, u64 steps, int stages, bool plain,
                                          ByBulk by_bulk, ByPairs by_pairs, ByBytes by_bytes) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ TileBoard board;
  __shared__ BulkBoard bulk_board;
  TileChannel<N> channel(job, &board);
  if (steps == 0) return mark(Phase::over);
  if (kHasBulk && plain) {
    Bulk<N, kHasPoster> bulk(channel, job, &bulk_board, shared);
    by_bulk(channel, bulk);
    return;
  }
  channel.run(steps, stages, [&] {
    if (plain) {
      by_pairs(channel);
    } else {
      by_bytes(channel);
    }
  });
}

}  // namespace commlib
