// Large data in tiles, each tile announced by one flag.
//
// A channel here is one block of the grid and the same block on every peer. Its movers push the
// tile of step s into slot s % kSlots of each peer; when all of them are through, the poster's one
// fence and flag make the tile readable there. The watcher reads what the peers have posted. So no
// mover ever waits for a fence or for the latency of a flag, and kDepth tiles are on their way
// while another is taken. Steps are numbered through the life of the communicator, so calls need no
// barrier between them.
//
// Why 2 kDepth + 2 slots are enough: a mover may write the tile of step s once the peer's movers
// have read step s - kSlots. Before it pushes step s it has taken step s - kDepth - 1, which the
// peer posted after all its movers had taken step s - 2 kDepth - 2. Between calls the same holds: a
// call pushes kDepth + 1 steps before it takes one, and the last one's steps are all taken here.
#pragma once

#include "device/reduce.cuh"
#include "device/wait.cuh"

namespace commlib {

enum Stage { kScatter, kGather };
constexpr int kHelperThreads = 128;                 // the last four warps
constexpr int kTileThreads = 384 + kHelperThreads;  // at most: more leave too few registers
constexpr int kPosts = 32;  // that movers can be ahead of the poster: fewer than 4 kDepth + 6

// What a block's warps tell each other.
struct TileBoard {
  u32 arrived[kStages];     // steps that every peer has posted
  u32 over;                 // the call has failed: movers leave
  u32 movers_done[kPosts];  // warps whose part of the post is written
};

template <int N>
class TileChannel {
 public:
  __device__ TileChannel(const Job& job, TileBoard* board) : job_(job), board_(board), step_(0) {
    begin_marked();
    step_ = block_of(job_.rank)->step + 1;
    if (threadIdx.x < sizeof(TileBoard) / sizeof(u32))
      reinterpret_cast<u32*>(board)[threadIdx.x] = 0;
    __syncthreads();
  }

  __device__ static u32 movers() { return blockDim.x - kHelperThreads; }

  // Runs `move` on the movers, the watch, and `help(i)` on the i-th warp after it: each of `steps`
  // steps is posted and awaited once in each of the first `stages` stages.
  template <class Move, class Help>
  __device__ __forceinline__ void run(u64 steps, int stages, Move move, Help help) const {
    if (threadIdx.x < movers()) {
      move();
      mark(Phase::over);
    } else if (threadIdx.x < movers() + 32) {
      watch(steps, stages);
    } else {
      help((threadIdx.x - movers()) / 32);
    }
    if (threadIdx.x == movers() && steps > 0) {
      block_of(job_.rank)->step = step_ - 1 + steps;
      count_call(job_, control_of(job_, job_.rank));
    }
  }
  // The same with movers that write to the peers themselves.
  template <class Move>
  __device__ __forceinline__ void run(u64 steps, int stages, Move move) const {
    run(steps, stages, move, [&](u32 helper) {
      if (helper == 1) post_all(steps, stages);
    });
  }
  __device__ __forceinline__ bool over() const {
    return *const_cast<const volatile u32*>(&board_->over) != 0;
  }
  // Tells the peers that step i lies in their slots; what this lane knows to be written is there.
  __device__ __forceinline__ void flag_step(Stage stage, u64 i) const {
    fence_sys();
#pragma unroll
    for (int p = 1; p < N; ++p) {
      const int peer = (job_.rank + p) % N;
      st_relaxed_sys(&block_of(peer)->posted[stage][job_.rank], flag(i));
    }
  }

  // Where rank `source` puts its tile of step i of this call, in the arena of `at`.
  __device__ __forceinline__ Pair* slot(Stage stage, int at, int source, u64 i) const {
    constexpr u64 begin = places(N).tiles;
    const u64 turn = static_cast<u64>(stage) * kSlots + (step_ + i) % kSlots;
    const u64 tile = (turn * N + source) * job_.tile_blocks + blockIdx.x;
    return reinterpret_cast<Pair*>(job_.arena[at] + begin + tile * kSlotBytes);
  }

  // Movers: my warp's part of the next tile is written. Posts are numbered in the order of their
  // calls.
  __device__ __forceinline__ void posted(u64 post) const {
    __threadfence_block();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) atomicAdd(&board_->movers_done[post % kPosts], 1u);
  }
  // Movers: every peer's tile of step i is here. False: the call has failed.
  __device__ __forceinline__ bool await(Stage stage, u64 i) const {
    mark(Phase::wait);
    const volatile u32* arrived = &board_->arrived[stage];
    while (*arrived <= i) {
      if (over()) return false;
    }
    __threadfence_block();
    mark(Phase::copy);
    return true;
  }

 private:
  // This block's, of a rank.
  __device__ __forceinline__ TileBlock* block_of(int rank) const {
    return reinterpret_cast<TileBlock*>(job_.arena[rank] + places(N).tile_blocks) + blockIdx.x;
  }
  __device__ __forceinline__ u64 flag(u64 i) const {
    return (step_ + i) << kSignatureBits | job_.signature;
  }

  // With two stages the order is that of a mover which reduces kDepth steps behind.
  __device__ void post_all(u64 steps, int stages) const {
    u64 post = 0;
    for (u64 i = 0; i < steps + (stages - 1) * kDepth; ++i) {
      if (i < steps && !post_one(post++, kScatter, i)) return;
      if (stages == 2 && i >= kDepth && !post_one(post++, kGather, i - kDepth)) return;
    }
  }
  __device__ __forceinline__ bool post_one(u64 post, Stage stage, u64 i) const {
    volatile u32* done = &board_->movers_done[post % kPosts];
    while (*done != movers() / 32) {
      if (over()) return false;
    }
    __syncwarp();
    *done = 0;
    fence_sys();
    const int peer = threadIdx.x & 31;
    if (peer < N && peer != job_.rank)
      st_relaxed_sys(&block_of(peer)->posted[stage][job_.rank], flag(i));
    return true;
  }

  // Eight lanes for a stage, one for a peer. Flags only grow, so one look tells of many steps.
  __device__ void watch(u64 steps, int stages) const {
    const int lane = threadIdx.x & 31, stage = lane / kMaxPeers, peer = lane % kMaxPeers;
    const bool looks = stage < stages && peer < N && peer != job_.rank;
    const u64* posted = &block_of(job_.rank)->posted[looks ? stage : 0][looks ? peer : 0];
    Patience patience;
    u64 there = looks ? 0 : steps, lowest = 0, shown = 0, scattered = 0;
    bool over = false;
    while (true) {
      if (there < steps) {
        const u64 seen = ld_acquire_sys(posted), number = seen >> kSignatureBits;
        const u64 before = there;
        if (number >= step_) there = number - step_ + 1 < steps ? number - step_ + 1 : steps;
        // A flag within this call is of this call.
        const bool foreign = number >= step_ && number < step_ + steps &&
                             ((seen ^ job_.signature) & ((1u << kSignatureBits) - 1)) != 0;
        if (foreign) {
          over = patience.gives_up(job_, peer, seen, number << kSignatureBits | job_.signature);
          there = before;  // it is none of this call's, and the first answer is always no
        } else if (there == before && patience.runs_out() &&
                   (stage == kScatter || scattered == steps)) {
          // A peer that waits itself gathers nothing: who did not scatter is to blame.
          over = patience.gives_up(job_, peer, seen, seen);
        } else if (there != before) {
          patience = Patience();
        }
      }
      lowest = there;
#pragma unroll
      for (int d = 1; d < kMaxPeers; d *= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, lowest, d);
        lowest = other < lowest ? other : lowest;
      }
      scattered = __shfl_sync(0xffffffffu, lowest, 0);
      if (__any_sync(0xffffffffu, over)) break;
      if (lowest != shown && peer == 0 && stage < stages) {
        __threadfence_block();
        *const_cast<volatile u32*>(&board_->arrived[stage]) = static_cast<u32>(lowest);
      }
      shown = lowest;
      if (__all_sync(0xffffffffu, lowest >= steps)) return;
    }
    *const_cast<volatile u32*>(&board_->over) = 1;
  }

  const Job& job_;
  TileBoard* board_;
  u64 step_;  // the number of this call's first step
};

// The tiles of a part, dealt to the blocks in turn.
struct Tiles {
  u64 bytes;
  u32 tile_bytes;

  __device__ u64 steps() const {
    const u64 tiles = (bytes + tile_bytes - 1) / tile_bytes;
    return tiles > blockIdx.x ? (tiles - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  }
  __device__ u64 offset(u64 i) const { return (blockIdx.x + i * gridDim.x) * tile_bytes; }
  __device__ u32 pairs(u64 i) const {
    const u64 left = bytes - offset(i);
    return static_cast<u32>(((left < tile_bytes ? left : tile_bytes) + 15) / 16);
  }
};

// The tensor; kPlain: every pair of it is whole and aligned.
template <bool kPlain>
__device__ __forceinline__ Pair get(const Span& span, u64 i) {
  if constexpr (kPlain) return reinterpret_cast<const Pair*>(span.data)[i];
  return span.pair(i);
}
template <bool kPlain>
__device__ __forceinline__ void put(const Span& span, u64 i, Pair v) {
  if constexpr (kPlain) {
    reinterpret_cast<Pair*>(span.data)[i] = v;
  } else {
    span.set_pair(i, v);
  }
}

// Pairs a mover has under way.
template <bool kPlain, int N>
__device__ constexpr int batch_of() {
  return N > 4 ? 1 : N > 2 || !kPlain ? 2 : 4;
}

// Calls body(i) for this thread's pairs, kBatch at once, `movers` apart.
template <int kBatch, class Body>
__device__ __forceinline__ void each_batch(u32 pairs, u32 movers, Body body) {
  for (u32 i = threadIdx.x; i < pairs; i += kBatch * movers) body(i);
}

// Peers served at once: as many loads are under way, and registers allow no more.
template <bool kPlain, int N>
__device__ constexpr int group_of() {
  return kPlain && N > 1 && N <= 4 ? N - 1 : 1;
}

// Copies a tile to each of the peers: `from(i)` is the tile for the i-th rank after this one.
template <bool kPlain, int N, class From>
__device__ __forceinline__ void push(const TileChannel<N>& channel, const Job& job, Stage stage,
                                     u64 step, u32 pairs, From from) {
  constexpr int kBatch = batch_of<kPlain, N>();
  constexpr int kGroup = group_of<kPlain, N>();
  const u32 stride = channel.movers();
  mark(Phase::publish);
  each_batch<kBatch>(pairs, stride, [&](u32 first) {
#pragma unroll 1
    for (int group = 1; group < N; group += kGroup) {
      Pair v[kGroup][kBatch];
#pragma unroll
      for (int p = 0; p < kGroup; ++p)
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (first + b * stride < pairs)
            v[p][b] = get<kPlain>(from(group + p), first + b * stride);
#pragma unroll
      for (int p = 0; p < kGroup; ++p) {
        Pair* to = channel.slot(stage, (job.rank + group + p) % N, job.rank, step);
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (first + b * stride < pairs) to[first + b * stride] = v[p][b];
      }
    }
  });
}

// Copies one tile to all peers, and to `own` here.
template <bool kPlain, int N>
__device__ __forceinline__ void push_one(const TileChannel<N>& channel, const Job& job, u64 step,
                                         u32 pairs, const Span& mine, const Span& own) {
  mark(Phase::publish);
  constexpr int kBatch = batch_of<kPlain, N>();
  const u32 stride = channel.movers();
  each_batch<kBatch>(pairs, stride, [&](u32 first) {
    Pair v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (first + b * stride < pairs) v[b] = get<kPlain>(mine, first + b * stride);
#pragma unroll
    for (int p = 1; p < N; ++p) {
      Pair* to = channel.slot(kScatter, (job.rank + p) % N, job.rank, step);
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (first + b * stride < pairs) to[first + b * stride] = v[b];
    }
    if (mine.data == own.data) return;
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (first + b * stride < pairs) put<kPlain>(own, first + b * stride, v[b]);
  });
}

// Copies a tile of this rank to another place of this rank.
template <bool kPlain, int N>
__device__ __forceinline__ void copy(const TileChannel<N>& channel, u32 pairs, const Span& from,
                                     const Span& to) {
  for (u32 i = threadIdx.x; i < pairs; i += channel.movers())
    put<kPlain>(to, i, get<kPlain>(from, i));
}

// Reduces my tile `mine` with those in the scatter slots; `take(i, pair)` gets the result.
template <bool kPlain, class T, class Op, int N, class Take>
__device__ __forceinline__ void reduce_tile(const TileChannel<N>& channel, const Job& job, u64 step,
                                            u32 pairs, const Span& mine, Take take) {
  const u32 stride = channel.movers();
  // Eight elements in a word take many registers.
  constexpr int kMax = batch_of<kPlain, N>(), kBatch = sizeof(T) == 1 && kMax > 2 ? 2 : kMax;
  mark(Phase::reduce);
  each_batch<kBatch>(pairs, stride, [&](u32 first) {
    Pair v[kBatch][N];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const u32 i = first + b * stride;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        if (i >= pairs) continue;
        v[b][r] = r == job.rank ? get<kPlain>(mine, i)
                                : ld_relaxed_sys(channel.slot(kScatter, job.rank, r, step) + i);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      u64 low[N], high[N];
#pragma unroll
      for (int r = 0; r < N; ++r) low[r] = v[b][r].a, high[r] = v[b][r].b;
      const Pair result = {fold<T, Op, N>(low, job.redop), fold<T, Op, N>(high, job.redop)};
      if (first + b * stride < pairs) take(first + b * stride, result);
    }
  });
  mark(Phase::copy);
}

// Copies the tiles of the peers out of their slots: `to(r)` is the place of rank r's.
template <bool kPlain, int N, class To>
__device__ __forceinline__ void take_tiles(const TileChannel<N>& channel, const Job& job,
                                           Stage stage, u64 step, u32 pairs, To to) {
  constexpr int kBatch = batch_of<kPlain, N>();
  constexpr int kGroup = group_of<kPlain, N>();
  const u32 stride = channel.movers();
  each_batch<kBatch>(pairs, stride, [&](u32 first) {
#pragma unroll 1
    for (int group = 1; group < N; group += kGroup) {
      Pair v[kGroup][kBatch];
#pragma unroll
      for (int p = 0; p < kGroup; ++p) {
        const Pair* from = channel.slot(stage, job.rank, (job.rank + group + p) % N, step);
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (first + b * stride < pairs) v[p][b] = ld_relaxed_sys(from + first + b * stride);
      }
#pragma unroll
      for (int p = 0; p < kGroup; ++p)
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (first + b * stride < pairs)
            put<kPlain>(to((job.rank + group + p) % N), first + b * stride, v[p][b]);
    }
  });
}

}  // namespace commlib
