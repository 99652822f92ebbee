// The steps that every staged algorithm is made of: a rank's place in the segment, its counters,
// and what it announces to its peers. One operation of a rank runs at a time.
//
// An operation is:  begin → (fill chunk 0) → publish → [fill, post, await, use, consume]* → finish.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "commlib/call.h"
#include "shm/segment.h"
#include "shm/wait.h"

namespace commlib::shm {

class COMMLIB_API Protocol {
 public:
  Protocol(std::shared_ptr<Segment> segment, int rank, double timeout_s);

  int rank() const { return rank_; }
  int world() const { return world_; }
  Segment& segment() const { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }
  Waiter& waiter() { return waiter_; }
  Stamps* stamps() const { return waiter_.stamps; }
  Arena& arena() { return arena_; }

  // --- before the steps of a call
  // Whether a single small chunk goes to a hot slot; nothing of the call is announced so far.
  void prepare(bool prefers_hot) {
    prefers_hot_ = prefers_hot;
    late_ = false;
  }
  // Checked mode: every rank shows its call and sees all calls before any data moves. All ranks see
  // the same table, so all raise the same error, and the communicator stays usable.
  void check_agreement(const Descriptor& mine, uint64_t detail);
  // The number of the operation under way, or of the last one.
  uint64_t number() const { return seq_; }

  // --- steps of an operation
  // Takes the next operation number; returns once this rank's announcement of it may be written.
  // `name` is the algorithm's place in the record.
  void begin(const Call& call, const Descriptor& what, uint16_t name);
  // Says that chunk 0 can be read (staged), or where the data lies (offered,
  // symmetric_if_all, pulled).
  void publish(Source source = Source::staged);
  // Waits for rank `r`'s announcement and checks that it is the same operation.
  const Line& await_line(int r) {
    const Line& line = line_of(r);
    waiter_.await(line.seq, {Awaited::line, r, seq_, seq_, mine_});
    compare(line, r);
    return line;
  }

  // Waits until rank `r` has made this operation, and set a word in it.
  void await_signal(int r, const Counter& word, uint64_t value) {
    await_line(r);
    waiter_.await(word, {Awaited::posted, r, seq_, value, mine_});
  }

  // Reserves room for `steps` chunks in every rank's staging ring. Positions are bytes since the
  // start and the same on all ranks; a chunk's room is a power of two, so that none wraps around
  // the ring's end.
  void reserve_chunks(uint64_t steps, size_t chunk_bytes, bool synchronised) {
    room_ = kCacheLine;
    while (room_ < chunk_bytes) room_ *= 2;
    first_ = round_up(next_, room_);
    next_ = first_ + steps * room_;
    hot_ = prefers_hot_ && steps == 1 && chunk_bytes <= kHotBytes && !late_;
    // Operations that everyone waits for need two slots; with others a rank may run ahead through
    // all of them.
    hot_slot_ = static_cast<int>(seq_ % (synchronised ? 2 : kHotSlots));
  }
  // Waits until the room of step k is no longer read by anyone, and returns it.
  unsigned char* slot_to_fill(uint64_t step);
  // Makes step k readable; step 0 goes with the announcement.
  void post(uint64_t step);
  // Waits for step k of rank `r` and returns its chunk.
  const unsigned char* await_step(int r, uint64_t step) {
    if (step == 0) {
      const Line& line = await_line(r);
      if (static_cast<Source>(line.what.source) == Source::staged)
        return segment_->staging(r) + line.in_offset;
    }
    const uint64_t needed = end_of(step);
    waiter_.await(segment_->control(r)->posted, {Awaited::posted, r, seq_, needed, mine_});
    return segment_->staging(r) + ring_offset(step);  // a late chunk is never in a hot slot
  }
  // Says that this rank no longer reads step k of anyone.
  void consume(uint64_t step) {
    me_->consumed.store(end_of(step), std::memory_order_release);
    waiter_.ring();
  }
  // Ends the operation. `synchronised`: every rank's announcement was awaited, so nobody reads
  // older ones any more.
  void finish(bool synchronised);
  // Ends it after every peer has: for operations in which peers touch this rank's tensors.
  void finish_together();

  // A chunk that fits the announcement's cache line travels there.
  bool is_inline(size_t bytes) const { return bytes <= kInlineBytes && !late_; }
  unsigned char* inline_data() { return my_line().data; }

  // --- memory
  const Line& line_of(int r) const { return line_of(r, seq_); }
  const Line& line_of(int r, uint64_t seq) const { return segment_->control(r)->ring[seq % kRing]; }
  // Copies memory of rank `r`'s process, which allows that in this operation.
  void pull(int r, uint64_t address, void* to, size_t bytes) {
    waiter_.pull({Awaited::line, r, seq_, seq_, mine_}, address, to, bytes);
  }
  // Memory rank `r` offered: `bytes` at `offset` of its arena, checked against its bounds.
  unsigned char* offered(int r, uint64_t offset, size_t bytes);
  bool late() const { return late_; }

 private:
  Line& my_line() { return me_->ring[seq_ % kRing]; }
  uint64_t end_of(uint64_t step) const { return first_ + (step + 1) * room_; }
  size_t ring_offset(uint64_t step) const { return (first_ + step * room_) % kRingBytes; }
  size_t offset_of(uint64_t step) const {
    return hot_ ? kRingBytes + hot_slot_ * kHotBytes : ring_offset(step);
  }
  void await_done(uint64_t seq);
  void compare(const Line& line, int r) {
    Descriptor other = line.what;
    other.source = mine_.source;
    const bool same = std::memcmp(&other, &mine_, sizeof(other)) == 0;
    if (!same || ((line.out_and_history ^ history_) & ~kOutBits) != 0) mismatch(r);
  }
  uint64_t first_difference(int r) const;
  std::string calls_of(uint64_t seq) const;
  [[noreturn]] void mismatch(int r);

  std::shared_ptr<Segment> segment_;
  int rank_;
  int world_;
  Waiter waiter_;
  Arena arena_;
  RankControl* me_;

  uint64_t seq_ = 0;             // the operation under way, or the last one
  uint64_t history_ = 0;         // a digest of all operations up to it
  uint64_t verdicts_ = 0;        // agreements checked (checked mode)
  uint64_t known_done_ = 0;      // every peer has finished this operation
  uint64_t known_consumed_ = 0;  // every peer has consumed up to here
  uint64_t first_ = 0;           // position of step 0
  uint64_t next_ = 0;            // where the next operation's chunks may start
  size_t room_ = kCacheLine;     // of one chunk in the ring
  bool prefers_hot_ = false;
  bool hot_ = false;
  int hot_slot_ = 0;
  uint64_t hot_used_[kHotSlots] = {};  // the last operation in each hot slot
  size_t bytes_ = 0;                   // of the one under way
  bool late_ = false;                  // the announcement went out before chunk 0 was staged
  const void* in_ = nullptr;
  uint64_t in_offset_ = 0;
  uint64_t out_offset_ = 0;
  Descriptor mine_{};
};

}  // namespace commlib::shm
