// The frame of every staged algorithm: each rank's data goes in chunks that peers copy or
// reduce.
//
//   for each chunk k:  fill my slot k | post it | use chunk k-1 of the others | say it is consumed
//
// One chunk of lag lets a rank fill while its peers still post. A rank whose tensor lies in its
// arena offers it instead of staging it; readers follow what each announcement says, so ranks need
// not agree on where their tensors are.
#pragma once

#include <algorithm>
#include <cstring>

#include "shm/group.h"

namespace commlib::shm {

// The chunks of one operation, the same on every rank but for what this rank does.
struct Chunks {
  uint64_t steps;       // the largest number of chunks of a rank
  size_t chunk_bytes;   // of a whole chunk as it lies in a slot
  bool fills;           // this rank has data to show
  bool uses;            // this rank reads what others show
  bool offers = false;  // its tensor lies in the arena and is shown there
  bool synchronised;    // every rank reads every other rank
  bool pulled = false;  // its tensor is shown in the memory of this process
};

inline uint64_t steps_for(size_t bytes, size_t chunk_bytes) {
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}

inline void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Reads the chunks of other ranks.
class Reader {
 public:
  Reader(Group& group, bool inline_chunk) : group_(group), inline_(inline_chunk) {}

  // Chunk `step` of rank `r`. `slot_offset` is where the wanted part starts in the slot;
  // `tensor_offset` where it starts in the rank's tensor, should it have offered that.
  // To be read in place: algorithms that reduce do, and their ranks never say "pulled".
  const unsigned char* read(int r, uint64_t step, size_t slot_offset, size_t tensor_offset,
                            size_t bytes) const {
    const Line& line = step == 0 ? group_.await_line(r) : group_.line_of(r);
    if (static_cast<Source>(line.what.source) == Source::offered) {
      return group_.offered(r, line.in_offset + tensor_offset, bytes);
    }
    const bool in_line = inline_ && static_cast<Source>(line.what.source) == Source::staged;
    return (in_line ? line.data : group_.await_step(r, step)) + slot_offset;
  }
  // The same, copied to `to`.
  void copy(unsigned char* to, int r, uint64_t step, size_t slot_offset, size_t tensor_offset,
            size_t bytes) const {
    const Line& line = step == 0 ? group_.await_line(r) : group_.line_of(r);
    if (static_cast<Source>(line.what.source) == Source::pulled)
      return group_.pull(r, line.in_offset + tensor_offset, to, bytes);
    shm::copy(to, read(r, step, slot_offset, tensor_offset, bytes), bytes);
  }

 private:
  Group& group_;
  bool inline_;
};

// `fill(step, slot)` writes this rank's chunk; `use(step, reader)` takes that chunk of every rank
// it reads.
template <class Fill, class Use>
void run_staged(Group& group, const Call& call, const Chunks& chunks, Fill&& fill, Use&& use) {
  if (!group.late()) group.begin(call);
  group.reserve_chunks(chunks.steps, chunks.chunk_bytes, chunks.synchronised);
  const bool inline_chunk = chunks.steps == 1 && chunks.chunk_bytes <= kInlineBytes;
  const Reader reader(group, inline_chunk);
  const bool in_place = chunks.offers || chunks.pulled;
  const bool stages = chunks.fills && !in_place;
  if (!stages && !group.late()) {
    group.publish(chunks.offers   ? Source::offered
                  : chunks.pulled ? Source::pulled
                                  : Source::staged);
  }
  if (!chunks.uses) group.consume(chunks.steps - 1);
  for (uint64_t step = 0; step <= chunks.steps; ++step) {
    if (stages && step < chunks.steps) {
      const bool in_line = inline_chunk && !group.late();
      fill(step, in_line ? group.inline_data() : group.slot_to_fill(step));
      group.post(step);
    }
    if (chunks.uses && step > 0) {
      use(step - 1, reader);
      group.consume(step - 1);
    }
  }
  if (in_place) return group.finish_together();
  group.finish(chunks.synchronised);
}

// Ranks other than `me`, starting behind it, so that not all ranks read the same peer at once.
template <class Visit>
void for_each_peer(const Group& group, Visit&& visit) {
  for (int i = 1; i < group.world(); ++i) visit((group.rank() + i) % group.world());
}

// Chunks that hold one part for each rank: where part `r` of a chunk starts and how much
// of a block it takes.
struct Parts {
  size_t part_bytes;  // of one rank in a chunk
  Parts(const Group& group, size_t block_bytes) {
    const size_t fits = group.chunk_bytes() / group.world() / kCacheLine * kCacheLine;
    part_bytes = std::min(round_up(block_bytes, kCacheLine), std::max(fits, kCacheLine));
  }
  uint64_t steps(size_t block_bytes) const {
    return std::max<uint64_t>(1, steps_for(block_bytes, part_bytes));
  }
  size_t bytes_in(uint64_t step, size_t block_bytes) const {
    const size_t first = step * part_bytes;
    return first >= block_bytes ? 0 : std::min(part_bytes, block_bytes - first);
  }
  size_t slot_bytes(const Group& group) const { return part_bytes * group.world(); }
};

}  // namespace commlib::shm
