// The bytes ranks share, as types. One anonymous segment holds a header and, for each rank, a
// section:
//
//   Header | section 0 | section 1 | ...        section = RankControl | staging | channels | arena
//
// A section is written by its rank alone; peers read it (and write only into tensors of its arena
// that the rank offered).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "commlib/call.h"

namespace commlib::shm {

constexpr uint64_t kMagic = 0x31304d48534c4d43;  // "CMLSHM01"
constexpr int kMaxCores = 1024;
constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;

constexpr int kRing = 32;  // operations a rank may run ahead of its slowest reader
// Chunks cycle through a staging ring larger than two cores' L2: writing a line that its last
// reader still holds costs 7 ns of coherence traffic (9 GB/s), writing one that has left for L3
// costs a quarter of that. Small chunks are better off in few, hot slots.
constexpr size_t kRingBytes = 4 << 20;
constexpr size_t kMaxChunkBytes = 1 << 20;
constexpr int kHotSlots = 8;
constexpr size_t kHotBytes = 16 << 10;
constexpr int kCells = 32;  // chunks under way between two ranks: a ring beyond L2 too
constexpr size_t kCellBytes = 64 << 10;
constexpr size_t kInlineBytes = 32;  // travels in the flag's own cache line

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free, "ranks share counters across processes");

// How a rank's data can be read in an operation.
enum class Source : uint8_t {
  staged,            // in its staging slots
  offered,           // in place in its arena, at `in_offset`
  symmetric_if_all,  // as offered, provided every rank says so; else it will be staged
  pulled,            // in the memory of its process, at the address `in_offset`, through the kernel
};

// What an operation is, in one word that ranks compare: 64 bits.
struct Descriptor {
  uint64_t op : 5;
  uint64_t dtype : 5;
  uint64_t redop : 4;
  uint64_t root : 7;
  uint64_t source : 2;
  uint64_t inner : 1;   // part of another call: an exchange of splits, of lengths, of objects
  uint64_t count : 40;  // elements; with rows: see kWidthBits, kElementBits
};
// In a Descriptor: the operation does not reduce, has no root. all_reduce_rms_norm has its form in
// the root's place (commlib/row_call.h).
constexpr uint64_t kNoRedop = 15, kNoRoot = 127;
// Its `count` for all_reduce_rms_norm: rows, and in so many bits their width. For
// all_reduce_epilogue: a digest of 16 bits, and in so many the elements.
constexpr int kWidthBits = 16, kElementBits = 24;
static_assert(sizeof(Descriptor) == 8);
constexpr uint64_t kOutBits = (uint64_t{1} << 48) - 1;  // of a Line's `out_and_history`

// The announcement of one operation by one rank; ready when `seq` has the operation's number.
// `in_offset` is where its data lies: in its staging area when staged, in its arena when offered or
// symmetric_if_all, in its process when pulled.
// `out_and_history`: where its output lies, and in the upper bits a digest of all operations up to
// this one. Bit fields would cost 25 ns: they are read before they are written.
struct alignas(kCacheLine) Line {
  Counter seq;
  Descriptor what;
  uint64_t in_offset;
  uint64_t out_and_history;
  unsigned char data[kInlineBytes];
};
static_assert(sizeof(Line) == kCacheLine);

struct RankControl {
  Line ring[kRing];
  alignas(kCacheLine) Counter posted;    // position up to which its chunks are readable
  alignas(kCacheLine) Counter consumed;  // position up to which it is done with every peer's chunks
  Counter done;                          // operations this rank has finished
  alignas(kCacheLine) std::atomic<uint32_t> bell;  // futex a sleeping rank waits on
  std::atomic<uint32_t> sleeping;                  // its threads that sleep
  std::atomic<int32_t> cpu;                        // where it last waited, -1 before
  std::atomic<uint32_t> closed;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> self;                   // where the process has this very number
  std::atomic<uint32_t> reads_peers;            // it may read the memory of every peer's process
  std::atomic<uint64_t> cores[kMaxCores / 64];  // it may run on, as a bit mask
  alignas(kCacheLine) Line verdict[2];  // checked mode: full descriptors, before the operation
  std::atomic<uint64_t> detail[2];      // checked mode: digest of split sizes
};

// One chunk on its way from one rank to another.
struct alignas(kCacheLine) Cell {
  Counter seq;  // 1 + number of the chunk in it
  uint64_t message_bytes;
  uint64_t chunk_bytes;
  Descriptor what;
  unsigned char data[kInlineBytes];
};
static_assert(sizeof(Cell) == kCacheLine);

struct Channel {
  Cell cells[kCells];
  alignas(kCacheLine) Counter taken;  // chunks the receiver has taken; written by the receiver
};

// Why the communicator ended: the first rank that finds out writes it, everyone raises it.
struct Ending {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 readable
  char kind[24];
  char text[4000];
};

struct Header {
  uint64_t magic;
  uint64_t nonce;
  int32_t world;
  uint64_t arena_bytes;
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;  // threads of all ranks that sleep
  alignas(kCacheLine) Ending ending;
};

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Where things are, for a world and an arena size.
struct Layout {
  int world;
  size_t arena_bytes;

  size_t header_bytes() const { return round_up(sizeof(Header), kPage); }
  size_t control_bytes() const { return round_up(sizeof(RankControl), kPage); }
  size_t staging_bytes() const { return kRingBytes + kHotSlots * kHotBytes; }
  size_t channel_bytes() const { return round_up(sizeof(Channel), kPage) + kCells * kCellBytes; }
  size_t fixed_bytes() const { return control_bytes() + staging_bytes(); }
  size_t section_bytes() const {
    return fixed_bytes() + world * channel_bytes() + round_up(arena_bytes, kPage);
  }
  size_t total_bytes() const { return header_bytes() + world * section_bytes(); }

  size_t section(int rank) const { return header_bytes() + rank * section_bytes(); }
  size_t staging(int rank) const { return section(rank) + control_bytes(); }
  size_t channel(int from, int to) const {
    return section(from) + fixed_bytes() + to * channel_bytes();
  }
  size_t arena(int rank) const { return section(rank) + fixed_bytes() + world * channel_bytes(); }
};

}  // namespace commlib::shm
