// What a process keeps of its calls, for readers in other processes: the bytes of one memfd,
// as types.
//
//   Header | Slot 0 | Slot 1 | ...        a slot belongs to one communicator
//
// Only its process writes to it. A reader learns the places of all fields from
// Header::description. All times are CLOCK_MONOTONIC's, in ns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "commlib/call.h"
#include "commlib/job.h"

namespace commlib::record {

constexpr uint32_t kVersion = 7;  // a reader of another one leaves the file alone
constexpr int kCalls = 256;       // the last ones of a communicator
constexpr int kMessages = 64;     // the same of send and recv
constexpr int kWaits = 8;         // threads of a rank that may wait at once
constexpr int kSlots = 256;
constexpr int kClosed = 32;  // communicators whose records are kept after their end
constexpr size_t kStrings = 32 << 10;
constexpr size_t kSaid = 3 << 10;

enum Flag : uint8_t {
  kInner = 1,     // made inside another call
  kCaptured = 4,  // into a graph: it runs when that is replayed
  kSends = 8,     // of messages
  kReceives = 16,
};

// A collective on shm, as few stores as say it. A small one has the time of the kernel's last tick,
// 4 ms ago at most.
struct alignas(32) Brief {
  std::atomic<uint64_t> number;  // from 1; 0 while the rest is written
  uint64_t entered_ns;
  uint64_t what;       // shm::Descriptor, whose fields the description has
  uint16_t algorithm;  // places in Header::strings
  uint16_t site;
  uint32_t thread;  // that made it, by the kernel's number
};

// Any other call: a message, or a call on another backend than shm.
struct alignas(64) Entry {
  std::atomic<uint64_t> number;
  uint64_t entered_ns;
  uint64_t finished_ns;  // 0: not yet, or not known
  uint64_t what;         // what ranks must agree on
  uint64_t count;        // elements
  uint64_t stream;       // of a message: its number among those of its pair
  uint16_t algorithm;
  uint16_t site;
  uint32_t thread;
  int16_t root;  // of a message: the peer; -1: none
  uint8_t op;
  uint8_t dtype;
  uint8_t redop;  // kNoReduction: none
  uint8_t flags;
  uint16_t graph;  // that it was captured in; 0: none, or one beyond those that are counted
};
static_assert(sizeof(Entry) == 64);
constexpr uint8_t kNoReduction = 255;

// When a large collective on shm ended.
struct End {
  uint64_t number;
  uint64_t ns;
};

// The large ones of an operation in all: calls, bytes, and time from entry to end.
struct Total {
  uint64_t calls;
  uint64_t bytes;
  uint64_t ns;
};

// A thread that waits for a peer longer than it spins.
constexpr uint32_t kTaken = 0xFFFFFFFF;  // no thread has this number
struct alignas(64) Wait {
  std::atomic<uint32_t> thread;  // 0: free; kTaken: being written
  int32_t peer;
  uint64_t number;  // of the call, or of the message of the pair
  uint64_t since_ns;
  uint32_t message;  // 1: to send it, 2: to receive it
};

// What this rank last saw of a peer, while it waited; and how long it has waited for it in all.
struct Peer {
  int32_t pid;
  int32_t name;                  // its number
  std::atomic<uint64_t> number;  // the last call that it was seen to enter
  std::atomic<uint64_t> what;
  std::atomic<uint64_t> waits;
  std::atomic<uint64_t> waited_ns;
};

// Calls that were captured together: numbered from 1 in each communicator, in the order of their
// captures.
struct Graph {
  uint64_t first;  // number of its first call
  uint64_t what;   // what ranks must agree on in all of its calls
  uint64_t over;   // calls of commlib's kernels that have run, as Gpu has it
  uint32_t calls;
  uint32_t kernels;  // of these, those of commlib's kernels: so many of `over` are a replay
  uint16_t site;     // of the first call
};

// Where a GPU is, as a thread of its rank has fetched it; calls of NCCL's own do not count.
struct Gpu {
  uint64_t at_ns;      // when; 0: never
  uint64_t over;       // calls, replayed ones included
  uint64_t waits_in;   // over + 1: it waits now
  uint64_t waits_for;  // a peer
  uint64_t since_ns;   // when it was first seen so
  uint64_t graph;      // of the call that it waited in; 0: none
  uint64_t left_in;    // over + 1 of the call that it was in when the communicator ended; 0: none
  uint64_t left_graph;
  uint64_t left_of_graph;  // calls of that graph that were over
  char what[112];          // the call that it waited in, in words
  char left_what[112];     // the call that it was in when the communicator ended
};

struct Slot {
  std::atomic<uint32_t> state;  // 0 free, 1 in use, 2 closed
  int32_t rank;
  int32_t world;
  char backend[12];
  uint64_t id;  // the same on all ranks
  uint64_t opened_ns;
  double timeout_s;
  alignas(64) std::atomic<uint64_t> entered;  // the last call
  std::atomic<uint64_t> finished;
  std::atomic<uint64_t> messages_made;
  alignas(64) Wait waits[kWaits];
  Peer peers[kMaxRanks];
  std::atomic<uint32_t> has_ended;
  char ended_kind[24];  // the error that ended the communicator
  char ended[kSaid];
  Gpu gpu;
  Brief calls[kCalls];  // on shm
  End ends[kCalls];
  Total large[kOps];
  Entry entries[kCalls];  // on other backends
  Entry messages[kMessages];
  uint32_t graphs_used;
  Graph graphs[kGraphs];
};

struct Header {
  char magic[8];  // "commlib"
  uint32_t version;
  uint32_t description_bytes;
  char description[8 << 10];  // JSON: where the fields of all these types are
  int32_t pid;
  int32_t parent;
  uint64_t opened_ns;
  std::atomic<uint32_t>
      wants_sites;                   // written by a reader: keep the place of each call from now on
  std::atomic<uint32_t> unrecorded;  // open communicators beyond the slots
  std::atomic<uint64_t>
      watched_until_ns;        // written by a reader: until then, ranks ask their GPUs more often
  std::atomic<uint32_t> used;  // bytes of strings
  char strings[kStrings];      // each ends with a zero; place 0 is the empty one
};

constexpr size_t kPageBytes = 4096;
constexpr size_t pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }
constexpr size_t kSlotBytes = pages(sizeof(Slot));
constexpr size_t kFileBytes = pages(sizeof(Header)) + kSlots * kSlotBytes;

}  // namespace commlib::record
