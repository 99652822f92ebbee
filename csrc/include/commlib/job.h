// What a kernel is told about one call, and the memory it works in: types shared by host and
// device.
//
// Each rank has one arena, mapped by every peer:
//
//   Control | LL slots | LL128 slots | Lamport slots | TileBlocks | PipeBlocks | pipes | MailBlocks
//   | mailboxes | tile slots | user arena
//
// A rank writes into the slots of its peers and reads its own; slot (…, s, …) of a rank is written
// by rank s alone. Everything a kernel remembers from call to call lies in Control, TileBlocks,
// PipeBlocks and MailBlocks, so a replayed graph and an eager call continue each other.
#pragma once

#include "commlib/types.h"

namespace commlib {

constexpr int kMaxPeers = 8;           // ranks that kernels serve
constexpr int kChannels = 2048;        // warps of a grid that moves packets, at most
constexpr u32 kWarpPackets = 32 * 16;  // bytes of a packet from each lane of a warp
constexpr int kAhead = 4;  // packets of a channel that a rank sends ahead of what it takes
constexpr int kTurn = 2 * kAhead, kLamportTurn = 4 * kAhead;  // slots of a channel
constexpr u64 kCrowdingBytes = 12 << 20;                      // a quarter of an L2 cache of 50 MB
constexpr u64 kMaxTileBlocks = 256;  // of a grid that waits for peers: one for each multiprocessor
constexpr u32 kSlotBytes = 16384;    // room for what a block moves to one peer in one step
constexpr int kDepth = 3;            // steps that a block pushes ahead of what it takes
constexpr int kSlots = 2 * kDepth + 2;  // why so many: device/tiles.cuh
constexpr int kStages = 2;              // of a call that moves tiles: scatter, gather
constexpr u64 kPipeBlocks = 32;         // at most, of a grid that moves tiles through pipes
constexpr u32 kMailPackets = 2048;      // of a block in one message, at most
constexpr u64 kMailSlots = 4;           // messages between two ranks that are on their way
constexpr int kSignatureBits = 16;
constexpr u32 kGraphs = 512;  // graphs of a communicator whose calls are counted; from 1, 0: none

// Pipes of collectives; of messages, which pairs order for themselves, and which no rank but the
// two counts among its calls.
enum PipeSet : u64 { kCollectives, kMessages, kPipeSets };
enum Way { kWritten, kTaken };  // what is posted of a pipe

// The call a rank waits in, for the error message of a peer that waits for it.
struct CallRecord {
  u64 number;  // calls that are over
  u64 call;    // the number of this one, from 1
  u64 what;    // op, dtype, redop, root, algorithm as the host packs them
  u64 bytes;
  u64 graph;  // that it was captured in
};

constexpr u64 kLeaving = 1, kLeft = 2;  // Progress::left is being written, is there

// Where a rank's GPU is: what it waited in last, the number of that call among those that are over
// or under way, replayed ones included, and the peer it waited for; what it was in when the
// communicator ended; and how many calls of each graph are over.
struct Progress {
  CallRecord current;
  u64 waits_in;
  u64 waits_for;
  u64 has_left;
  CallRecord left;
  u64 left_of_graph;  // calls of its graph that were over then
  u64 of_graph[kGraphs];
};

// What a rank says to a peer around the copies of its engines: the flag of the call, and where its
// input lies in its arena.
struct alignas(16) Notice {
  u64 flag;
  u64 place;
};
enum class Turn : u32 { ready, read, count };  // its input may be read | it has read the others'

struct alignas(256) Control {
  u64 ll_number[kChannels];
  u64 ll128_number[kChannels];
  u64 lamport_number[kChannels];
  alignas(128) u64 ended;  // not 0: this rank's communicator is over, kernels leave
  u64 token;               // of the check that memory is mapped
  u64 asked_ns;            // when a kernel last looked whether the host aborts
  alignas(128) Progress progress;
  u64 engine_number;  // calls whose data copy engines have moved
  alignas(128) Notice notices[static_cast<int>(Turn::count)][kMaxPeers];  // last, by each peer
  alignas(128) u64 lamport_signature[kMaxTileBlocks][kMaxPeers];          // of each peer's call
};

// What a block of a grid that moves tiles remembers, and what peers write to it.
struct alignas(256) TileBlock {
  u64 step;
  alignas(128) u64 posted[kStages][kMaxPeers];  // the step that each peer has posted
};

// Tiles that a pipe holds. All pipes into a block share the link, so more of them need fewer each.
constexpr u64 kMaxPipeSlots = 32;
COMMLIB_BOTH constexpr u64 pipe_slots(u64 n) {
  return n < 3 ? kMaxPipeSlots : n < 6 ? kMaxPipeSlots / (n - 1) : 6;
}

// What a block of a grid that moves tiles through pipes remembers of each pipe, and what peers
// write to it: tiles written, and tiles taken (device/pipe.cuh).
struct alignas(256) PipeBlock {
  u64 before[2][kStages][kMaxPeers];  // in calls that are over
  u64 posted[2][kStages][kMaxPeers];  // by each peer
  // By each peer, of the calls whose first tile lies in a slot: which call it is. One that sends
  // more than this rank expects may have posted its last tile before this rank looks.
  u64 begun[kStages][kMaxPeers][kMaxPipeSlots];
};

// What a block of a grid that moves short messages remembers of each peer: how many it has sent
// there and taken from there; and what peers write to it: how many of its own they have taken
// (device/mailbox.cuh).
struct alignas(256) MailBlock {
  u64 sent[kMaxPeers], taken[kMaxPeers];
  alignas(128) u64 posted[kMaxPeers];
};

// What a kernel that gave up tells the host; in host memory.
struct Report {
  u64 kind;  // 0 nothing; an Ending, or what ended_by() gave. Written last.
  u64 peer;
  CallRecord mine;
  CallRecord peer_call;
  u64 abort;       // written by the host: kernels leave
  u64 timeout_ns;  // with `abort` the Deadline of kernels from other compilers (commlib/ffi.h)
  u64 gave_up;
  u64 ended;          // copy of Control::ended, fetched now and then: what peers wrote
  Progress progress;  // the same of Control::progress
};

enum class Ending : u64 { none, timeout, mismatch, aborted, by_peer, misplaced };

constexpr u64 kNobody = 0xff;

// What a rank writes into its peers' `ended`: who ended it, why, and whom it had waited for.
COMMLIB_BOTH constexpr u64 ended_by(u64 rank, Ending why, u64 awaited) {
  return static_cast<u64>(Ending::by_peer) | static_cast<u64>(why) << 8 | rank << 16 |
         awaited << 24;
}

struct Job {
  const u8* in;
  u8* out;
  u64 bytes;             // of the tensor, or of one rank's block (each kernel says)
  u8* arena[kMaxPeers];  // of every rank, as mapped here; arena[rank] is this rank's own
  Report* report;
  u64 timeout_ns;
  u64 what;
  u32 tile_bytes;  // of a step, at most kSlotBytes; 0: nothing moves in tiles
  int rank;
  int world;
  int redop;
  u32 signature;    // of everything ranks must agree on in this call
  u32 tile_blocks;  // that the layout has room for, the same on every rank
  u32 graph;        // as CallRecord has it
  u32 first;        // the communicator is the first one of its process, on every rank
};

// Whether a kernel of packets lets the next one of its stream start at its own begin, before its
// peers have: one of few blocks, of the first communicator (nccl/footprint.h). Others do so once
// they have heard from all peers.
constexpr unsigned kEarlyBlocks = 65;
COMMLIB_BOTH inline bool lets_next_start(const Job& job, unsigned blocks) {
  return job.first != 0 && blocks <= kEarlyBlocks;
}

// What each rank sends and takes where that differs from peer to peer: the second parameter of the
// kernels that only move.
struct Moves {
  u64 send_at[kMaxPeers], send_bytes[kMaxPeers];  // in `in`, for rank r
  u64 take_at[kMaxPeers], take_bytes[kMaxPeers];  // in `out`, from rank r
  u64 longest;                                    // of all ranks' blocks, equal on all ranks
  u64 packet_bytes;                               // longer messages move in tiles
  u64 max_blocks;                                 // that one message takes
};

// What moves of a message in packets of 8 bytes: blocks, and packets of each but the last.
struct MailShare {
  u64 blocks, packets;

  COMMLIB_BOTH MailShare(u64 bytes, u64 max_blocks) {
    constexpr u64 kFew = 128;  // one for each thread of few
    const u64 all = (bytes + 7) / 8, wanted = (all + kFew - 1) / kFew;
    blocks = wanted < max_blocks ? wanted : max_blocks;
    packets = (all + blocks - 1) / blocks;
  }
};

// The second parameter of the kernel around the copies of engines.
struct Reads {
  u64 in_at[kMaxPeers];  // where each rank's input lies in its arena, as this rank reads it
  Turn turn;
};

// Where the parts of an arena begin, for a world of n. Slots of tiles follow the TileBlocks; how
// much room they take depends on the GPU.
struct Places {
  u64 ll, ll128, lamport, tile_blocks, pipe_blocks, pipes, mail_blocks, mail, tiles;
};

// Warps of a grid that moves packets between n ranks, at most: many ranks have many slots.
COMMLIB_BOTH constexpr u64 channels(u64 n) { return n > 4 ? kChannels / 2 : kChannels; }

constexpr u64 kPlaceAlign = 1 << 16;
COMMLIB_BOTH constexpr u64 place_after(u64 at, u64 bytes) {
  return (at + bytes + kPlaceAlign - 1) / kPlaceAlign * kPlaceAlign;
}
COMMLIB_BOTH constexpr Places places(u64 n) {
  const u64 ll = place_after(0, sizeof(Control));
  const u64 packets = n * channels(n) * kWarpPackets;
  const u64 ll128 = place_after(ll, packets * kTurn);
  const u64 lamport = place_after(ll128, packets * kTurn);
  const u64 tile_blocks = place_after(lamport, packets * kLamportTurn);
  const u64 pipe_blocks = place_after(tile_blocks, kMaxTileBlocks * sizeof(TileBlock));
  const u64 pipes = place_after(pipe_blocks, kPipeSets * kPipeBlocks * sizeof(PipeBlock));
  const u64 pipe_bytes = n > 1 ? (n - 1) * pipe_slots(n) * kSlotBytes : 0;
  const u64 mail_blocks = place_after(pipes, (kStages + 1) * kPipeBlocks * pipe_bytes);
  const u64 mail = place_after(mail_blocks, kPipeBlocks * sizeof(MailBlock));
  const u64 tiles = place_after(mail, n * kPipeBlocks * kMailSlots * kMailPackets * 16);
  return {ll, ll128, lamport, tile_blocks, pipe_blocks, pipes, mail_blocks, mail, tiles};
}
// Where the user arena begins.
COMMLIB_BOTH constexpr u64 user_place(u64 n, u64 tile_blocks) {
  return place_after(places(n).tiles, kStages * tile_blocks * kSlots * n * kSlotBytes);
}

}  // namespace commlib
