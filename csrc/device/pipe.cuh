// Large data through few blocks: queues of tiles, so deep that a block keeps its share of the link
// full while the others of the GPU compute.
//
// A pipe leads from a block to the same block of a peer: pipe_slots(N) slots in the peer's arena
// that take turns. The number of tiles written there is posted to the peer, and the number of those
// taken is posted back: a block sends ahead until the slots are full. Each pipe counts for itself,
// from call to call, so calls need no barrier between them and ranks need not send alike.
//
//   movers    take tiles out of their slots, or reduce them; the first warp handles all copies
//   watcher   sees what peers have posted
//   poster    posts what was written and taken: no copy waits for its fences
//   sender    fills the pipes
//   gatherer  in a call of two stages: takes the tiles of the second
//
// Sender, gatherer and first mover each own a ring of shared memory that the bulk copy engine fills
// and empties (device/pipe_ring.cuh). A tile takes such a warp a third of a microsecond, so its
// loop is short.
#pragma once

#include "device/bulk_copy.cuh"
#include "device/mailbox.cuh"

namespace commlib {

constexpr u32 kPipeShared = 13;     // slots of shared memory that the rings have together
constexpr u32 kMaxEntries = 32;     // of a ring
constexpr u32 kMaxUnwritten = 8;    // copies to peers that a warp has on their way
constexpr u32 kInFlight = 1 << 19;  // bytes to a peer that fill the link: more only queue
constexpr int kPipeThreads = 384;   // at most: more leave too few registers

extern "C" {
__device__ u8 commlib_shared_slots[kPipeShared];
}

// Words of both ways, both stages, all peers: one for each lane of a warp.
struct PipeWords {
  u32 word[2][kStages][kMaxPeers];
};

// What a block's warps tell each other. Tiles are counted from the beginning of the call.
struct PipeBoard {
  u64 before[2][kStages][kMaxPeers];
  u64 full[kStages + 1][kMaxEntries];  // of the rings: mover's, sender's, gatherer's
  PipeWords goal;                      // tiles that this block writes to a peer, takes from it
  PipeWords done;                      // those that it has written, taken
  PipeWords seen;                      // tiles that a peer lets it write, take
  u32 signature[2][kStages][kMaxPeers];
  u32 loaded[kMaxPeers];     // tiles for a peer that the sender has read
  u32 reduced[kMaxEntries];  // warps that are done with an entry
  u32 over;                  // the call has failed: all leave
};

// Entries of shared memory that a warp fills and empties in turn.
struct Ring {
  u8* memory;
  u64* full;
  u32 entries, entry_bytes;
};

// One of them, and which time it comes.
struct Entry {
  u32 at = 0, phase = 0;

  __device__ void next(const Ring& ring) {
    if (++at < ring.entries) return;
    at = 0;
    phase ^= 1;
  }
  __device__ u8* memory(const Ring& ring) const { return ring.memory + at * ring.entry_bytes; }
  __device__ u64* barrier(const Ring& ring) const { return ring.full + at; }
};

// What lies in a tensor and travels as one.
struct Tile {
  u8* data;
  u32 bytes;

  __device__ u32 pairs() const { return (bytes + 15) / 16; }
};

template <int N>
class Pipes {
 public:
  static constexpr u64 kPipeSlots = pipe_slots(N);

  // `bytes(way, stage, peer)`: what this rank writes to a peer, or takes from it.
  template <class Bytes>
  __device__ Pipes(const Job& job, PipeBoard* board, u32 tile_bytes, Bytes bytes,
                   u64 set = kCollectives)
      : job_(job), board_(board), tile_bytes_(tile_bytes), set_(set) {
    begin_marked();
    for (u32 i = threadIdx.x; i < sizeof(PipeBoard) / sizeof(u32); i += blockDim.x)
      reinterpret_cast<u32*>(board)[i] = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
      const int way = way_of(), stage = stage_of(), peer = peer_of();
      const bool is_peer = peer < N && peer != job.rank;
      const u64 all = is_peer ? bytes(static_cast<Way>(way), static_cast<Stage>(stage), peer) : 0;
      board->goal.word[way][stage][peer] = static_cast<u32>(tiles(all).steps());
      board->signature[way][stage][peer] = signature_of(job, all);
      board->before[way][stage][peer] = block_of(job.rank)->before[way][stage][peer];
    }
    for (u32 i = threadIdx.x; i < (kStages + 1) * kMaxEntries; i += blockDim.x)
      barrier_init(&board->full[0][0] + i);
    fence_shared_async();
    __syncthreads();
  }

  // Runs `move` on the movers and each of the others on a warp of its own; a ring by one thread of
  // a warp if kPlain.
  template <bool kPlain, class Move, class Send, class Gather>
  __device__ __forceinline__ void run(Move move, Send send, Gather gather) const {
    const u32 movers = TileChannel<N>::movers(), helper = (threadIdx.x - movers) / 32;
    const bool runs_ring = !kPlain || (threadIdx.x & 31) == 0;
    if (threadIdx.x < movers) {
      if (runs_ring || threadIdx.x >= 32) move();
    } else if (helper == 0) {
      watch();
    } else if (helper == 1) {
      post();
    } else if (runs_ring && helper == 2) {
      send();
    } else if (runs_ring) {
      gather();
    }
    mark(Phase::wait);
    __syncthreads();
    mark(Phase::over);
    if (threadIdx.x < 32)
      block_of(job_.rank)->before[way_of()][stage_of()][peer_of()] =
          before(way_of(), stage_of(), peer_of()) + goal(way_of(), stage_of(), peer_of());
    if (threadIdx.x == 0 && set_ == kCollectives) count_call(job_, control_of(job_, job_.rank));
  }

  __device__ Tiles tiles(u64 bytes) const { return {bytes, tile_bytes_}; }
  __device__ Tile tile(const u8* tensor, u64 bytes, u64 offset) const {
    const u64 left = bytes - offset;
    return {const_cast<u8*>(tensor) + offset,
            left < tile_bytes_ ? static_cast<u32>(left) : tile_bytes_};
  }
  // Of this block's tiles in any tensor: where the first begins, and how far it is to the next.
  __device__ u64 first() const { return u64{blockIdx.x} * tile_bytes_; }
  __device__ u64 stride() const { return u64{gridDim.x} * tile_bytes_; }
  __device__ u32 tile_bytes() const { return tile_bytes_; }
  __device__ int rank() const { return job_.rank; }
  __device__ bool over() const { return look(&board_->over) != 0; }
  __device__ u32 goal(int way, int stage, int peer) const {
    return board_->goal.word[way][stage][peer];
  }
  // Up to which step all peers let this block write, or take, what there is for them.
  __device__ u32 allowed(Way way, Stage stage) const {
    u32 limit = ~0u;
#pragma unroll
    for (int k = 0; k < N - 1; ++k) {
      const u32 seen = look(&board_->seen.word[way][stage][peer(k)]);
      if (seen < goal(way, stage, peer(k)) && seen < limit) limit = seen;
    }
    return limit;
  }
  __device__ void tell(Way way, Stage stage, int peer, u32 steps) const {
    say(&board_->done.word[way][stage][peer], steps);
  }
  __device__ void tell_loaded(int peer, u32 steps) const { say(&board_->loaded[peer], steps); }
  __device__ bool is_loaded(int peer, u32 step) const { return look(&board_->loaded[peer]) > step; }
  // Warps that are done with an entry.
  __device__ u32* reduced(const Entry& entry) const { return &board_->reduced[entry.at]; }
  // Where this rank writes a tile at a peer; where it takes one from.
  __device__ u8* slot_at(Stage stage, int peer, u32 step) const {
    return slot(stage, peer, job_.rank, before(kWritten, stage, peer) + step);
  }
  __device__ u8* slot_from(Stage stage, int peer, u32 step) const {
    return slot(stage, job_.rank, peer, before(kTaken, stage, peer) + step);
  }
  // The k-th peer in this block's order: what all blocks send at a time is for all.
  __device__ int peer(int k) const {
    constexpr int kPeers = N > 1 ? N - 1 : 1;
    return (job_.rank + 1 + (k + static_cast<int>(blockIdx.x)) % kPeers) % N;
  }

  // Rings of so many entries, one after the other in shared memory.
  __device__ Ring ring(int i, u32 entries, u32 entry_bytes, u32 at_bytes) const {
    extern __shared__ __align__(128) u8 shared[];
    return {shared + at_bytes, board_->full[i], entries, entry_bytes};
  }

  // Without fences, which would take longer than a tile: a word announces copies by the
  // engine that its writer has awaited.
  static __device__ __forceinline__ u32 look(const u32* word) {
    return *const_cast<const volatile u32*>(word);
  }
  static __device__ __forceinline__ void say(u32* word, u32 value) {
    *const_cast<volatile u32*>(word) = value;
  }

 private:
  // A lane's word.
  static __device__ int way_of() { return (threadIdx.x & 31) / (kStages * kMaxPeers); }
  static __device__ int stage_of() { return (threadIdx.x & 31) / kMaxPeers % kStages; }
  static __device__ int peer_of() { return threadIdx.x % kMaxPeers; }

  __device__ u64 before(int way, int stage, int peer) const {
    return board_->before[way][stage][peer];
  }
  __device__ PipeBlock* block_of(int rank) const {
    return pipe_block<N>(job_, rank, set_, blockIdx.x);
  }
  __device__ u8* slot(Stage stage, int at, int source, u64 number) const {
    constexpr u64 kPeers = N > 1 ? N - 1 : 1;
    // The second set has the first stage alone.
    const u64 pipe =
        ((set_ * kStages + stage) * kPipeBlocks + blockIdx.x) * kPeers + (source - at - 1 + N) % N;
    return job_.arena[at] + places(N).pipes +
           (pipe * kPipeSlots + number % kPipeSlots) * kSlotBytes;
  }
  __device__ void post() const {
    const int way = way_of(), stage = stage_of(), peer = peer_of();
    const u32 goal = this->goal(way, stage, peer);
    const u64 first = before(way, stage, peer);
    PipeBlock* theirs = block_of(peer < N ? peer : 0);
    u64* word = &theirs->posted[way][stage][job_.rank];
    u32 posted = 0;
    while (__any_sync(0xffffffffu, posted < goal)) {
      const bool leaves = over();
      const u32 now = look(&board_->done.word[way][stage][peer]);
      if (now != posted) {
        if (way == kWritten && posted == 0)
          st_relaxed_sys(&theirs->begun[stage][job_.rank][first % kPipeSlots],
                         (first + 1) << kSignatureBits | board_->signature[way][stage][peer]);
        if (way == kWritten) fence_sys();  // what was taken has come: nothing is left to order
        st_relaxed_sys(word, first + now);
        posted = now;
      }
      if (__any_sync(0xffffffffu, leaves)) return;
    }
  }

  // A lane sees tiles that a peer has written, or that it has taken: so many more it may be sent.
  __device__ void watch() const {
    const int lane = threadIdx.x & 31, stage = stage_of(), peer = peer_of();
    const Way seen_way = static_cast<Way>(way_of()),
              my_way = seen_way == kWritten ? kTaken : kWritten;
    const u32 goal = this->goal(my_way, stage, peer);
    const u64 first = before(my_way, stage, peer);
    const u64 room = seen_way == kTaken ? kPipeSlots : 0;
    const u64* posted = &block_of(job_.rank)->posted[seen_way][stage][peer];
    const u64* begun = &block_of(job_.rank)->begun[stage][peer][first % kPipeSlots];
    const u64 expected = (first + 1) << kSignatureBits | board_->signature[my_way][stage][peer];
    Patience patience;
    u32 there = 0;
    while (true) {
      u64 seen = 0, call = expected;
      const u32 had = there;
      if (there < goal) {
        if (seen_way == kWritten && had == 0) call = ld_relaxed_sys(begun);
        seen = ld_acquire_sys(posted);
        const u64 come = seen + room > first ? seen + room - first : 0;
        there = come < goal ? static_cast<u32>(come) : goal;
      }
      // That of an earlier call was read just before this one's came.
      if (call != expected) there = had;
      if (there != had) {
        patience = Patience(there > room);
        fence_async();  // for the copies of the warps that see it
        say(&board_->seen.word[my_way][stage][peer], there);
      }
      const u32 waiting = __ballot_sync(0xffffffffu, there < goal);
      // Who has not sent is to blame first; a peer that waits itself gathers nothing, and takes
      // nothing.
      const u32 first_stage = waiting & 0x000000ffu, any_stage = waiting & 0x0000ffffu;
      const u32 blamed = first_stage ? first_stage : any_stage ? any_stage : waiting;
      bool leaves = false;
      if (call != expected && call >> kSignatureBits == first + 1) {
        leaves = patience.gives_up(job_, peer, call, expected);
      } else if ((blamed >> lane & 1) != 0 && there == had && patience.runs_out()) {
        // Of a message that is shorter than this one there are packets. Those that come behind this
        // one are seen only with its tiles.
        const bool shorter = set_ == kMessages && seen_way == kWritten && blockIdx.x == 0 &&
                             Mailboxes<N>(job_).has_come(peer) && ld_acquire_sys(posted) == seen;
        leaves = patience.gives_up(job_, peer, shorter ? expected ^ 1 : expected, expected);
      }
      if (__any_sync(0xffffffffu, leaves)) break;
      if (waiting == 0) return;
    }
    say(&board_->over, 1);
  }

  const Job& job_;
  PipeBoard* board_;
  u32 tile_bytes_;
  u64 set_;
};

}  // namespace commlib
