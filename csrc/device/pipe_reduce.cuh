// A ring whose entries hold a tile of each rank, to be reduced there.
#pragma once

#include "device/pipe_ring.cuh"

namespace commlib {

// How a call that reduces deals out the shared memory: entries of N tiles to reduce, and of one
// that is sent, or gathered in a second stage. Many ranks' tiles have to be smaller for it.
template <int N, bool kReturns>
struct PipeRooms {
  static constexpr u32 kMinReduced = 3, kMinSent = 4, kMinGathered = kReturns ? 3 : 0;
  static constexpr u32 kMinEntries = N * kMinReduced + kMinSent + kMinGathered;
  static constexpr u32 kMaxTile = kPipeShared * kSlotBytes / kMinEntries / 512 * 512;

  __device__ explicit PipeRooms(u32 wanted) : tile_bytes(wanted < kMaxTile ? wanted : kMaxTile) {
    const u32 tiles = kPipeShared * kSlotBytes / tile_bytes;
    const u32 limit = (tiles - kMinSent - kMinGathered) / N, wished = tiles * 5 / 8 / N;
    reduced_ = capped(wished < kMinReduced ? kMinReduced : wished < limit ? wished : limit);
    const u32 left = tiles - N * reduced_;
    gathered_ = kReturns ? capped(left * 3 / 7) : 0;
    sent_ = capped(left - gathered_);
  }
  __device__ Ring reduced(const Pipes<N>& pipes) const {
    return pipes.ring(0, reduced_, N * tile_bytes, 0);
  }
  __device__ Ring sent(const Pipes<N>& pipes) const {
    return pipes.ring(1, sent_, tile_bytes, reduced_ * N * tile_bytes);
  }
  __device__ Ring gathered(const Pipes<N>& pipes) const {
    return pipes.ring(2, gathered_, tile_bytes, (reduced_ * N + sent_) * tile_bytes);
  }

  u32 tile_bytes;

 private:
  static __device__ u32 capped(u32 entries) {
    return entries < kMaxEntries ? entries : kMaxEntries;
  }
  u32 reduced_, sent_, gathered_;
};

// Reduces everyone's tile for this rank, in rank order: `own(offset)` is its own, `to(offset)`
// the place of the result, which also goes to all peers if there is a second stage. An entry holds
// N tiles. This actor is the first warp of the movers; the others reduce.
template <bool kPlain, int N, bool kReturns, class Fold, class Own, class To>
class Reducer {
 public:
  static constexpr bool kPosts = kReturns;
  __device__ Reducer(const Pipes<N>& pipes, Fold fold, Own own, To to)
      : pipes_(pipes),
        asked_at_(pipes.first()),
        done_at_(pipes.first()),
        fold_(fold),
        own_(own),
        to_(to) {}

  // What the other warps do.
  __device__ __forceinline__ void assist(const Ring& ring, u32 items) const {
    Entry entry;
    u64 offset = pipes_.first();
    for (u32 i = 0; i < items; ++i, entry.next(ring), offset += pipes_.stride()) {
      while (!has_come(entry.barrier(ring), entry.phase))
        if (pipes_.over()) return;
      reduce(entry.memory(ring), own_(offset));
      fence_shared_async();
      __threadfence_block();
      __syncwarp();
      if ((threadIdx.x & 31) == 0) atomicAdd(pipes_.reduced(entry), 1u);
    }
  }

  __device__ bool may_ask() {
    if (asked_ < allowed_) return true;
    mark(Phase::wait);
    allowed_ = pipes_.allowed(kTaken, kScatter);
    mark(Phase::reduce);
    return asked_ < allowed_;
  }
  __device__ void ask(u8* entry, u64* barrier) {
    const Tile own = own_(asked_at_);
    const u32 bytes = own.pairs() * 16;
    Hand<kPlain>::load(part(entry, pipes_.rank()), own, (N - 1) * bytes, barrier);
    if (Hand<kPlain>::leads()) {
#pragma unroll
      for (int k = 0; k < N - 1; ++k) {
        const int peer = pipes_.peer(k);
        bulk_copy(part(entry, peer), pipes_.slot_from(kScatter, peer, asked_), bytes, barrier);
      }
    }
    ++asked_;
    asked_at_ += pipes_.stride();
  }
  __device__ void loaded() {
#pragma unroll
    for (int k = 0; k < N - 1; ++k) pipes_.tell(kTaken, kScatter, pipes_.peer(k), done_ + 1);
  }
  __device__ bool may_give(const Entry& entry) {
    while (pipes_.look(pipes_.reduced(entry)) != assistants() / 32)
      if (pipes_.over()) return false;
    if (kReturns && done_ >= returned_) returned_ = pipes_.allowed(kWritten, kGather);
    return !kReturns || done_ < returned_;
  }
  __device__ void give(u8* entry, const Entry& counted) {
    pipes_.say(pipes_.reduced(counted), 0);
    const u8* result = result_of(entry);
    const Tile to = to_(done_at_);
#pragma unroll
    for (int k = 0; k < (kReturns ? N - 1 : 0); ++k)
      if (Hand<kPlain>::leads())
        bulk_store(pipes_.slot_at(kGather, pipes_.peer(k), done_), result, to.pairs() * 16);
    Hand<kPlain>::store(to, result);
    ++done_;
    done_at_ += pipes_.stride();
  }
  __device__ void written(u32 all) {
#pragma unroll
    for (int k = 0; k < N - 1; ++k)
      if (kReturns && all > 0) pipes_.tell(kWritten, kGather, pipes_.peer(k), all);
  }

 private:
  static __device__ u32 assistants() { return TileChannel<N>::movers() - 32; }
  // This rank's own part is the last one of an entry: it may need more room.
  __device__ u8* part(u8* entry, int rank) const {
    return entry + (rank - pipes_.rank() - 1 + N) % N * pipes_.tile_bytes();
  }
  // Where a peer's part was: a pair of this rank's own may lie in two.
  __device__ u8* result_of(u8* entry) const { return entry; }
  __device__ __forceinline__ void reduce(u8* entry, const Tile& own) const {
    constexpr int kBatch = N > 4 ? 1 : 2;  // under way at once
    Pair* result = reinterpret_cast<Pair*>(result_of(entry));
    const u32 stride = assistants(), pairs = own.pairs();
    for (u32 first = threadIdx.x - 32; first < pairs; first += kBatch * stride) {
      Pair v[kBatch][N];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int r = 0; r < N; ++r)
          if (first + b * stride < pairs)
            v[b][r] = r == pipes_.rank()
                          ? Hand<kPlain>::pair(part(entry, r), first + b * stride, own)
                          : reinterpret_cast<const Pair*>(part(entry, r))[first + b * stride];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        u64 low[N], high[N];
#pragma unroll
        for (int r = 0; r < N; ++r) low[r] = v[b][r].a, high[r] = v[b][r].b;
        if (first + b * stride < pairs) result[first + b * stride] = {fold_(low), fold_(high)};
      }
    }
  }

  const Pipes<N>& pipes_;
  u64 asked_at_, done_at_;
  u32 asked_ = 0, done_ = 0, allowed_ = 0, returned_ = 0;
  Fold fold_;
  Own own_;
  To to_;
};

}  // namespace commlib
