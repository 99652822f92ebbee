// What a rank holds: its place in the segment, its counters, and the plan; and the steps every
// staged algorithm is made of. One operation of a group runs at a time.
//
// An operation is:  begin → (fill chunk 0) → publish → [fill, post, await, use, consume]* → finish.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "commlib/call.h"
#include "commlib/reduce.h"
#include "plan/table.h"
#include "shm/algorithm.h"
#include "shm/segment.h"
#include "shm/wait.h"

namespace commlib::shm {

class COMMLIB_API Group {
 public:
  Group(std::shared_ptr<Segment> segment, int rank, double timeout_s, const ReduceTable* reduce,
        bool checked);

  // Every algorithm of this backend, as its row says it (csrc/plan/row.h); then the plan that
  // chooses among them (csrc/plan/table.h).
  void learn(const std::string& rows);
  void set_plan(const std::string& text) { plan_.set(text, true); }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { inner_ = inner; }

  // Runs `call` with the algorithm the plan names for `plan_bytes`; symmetric: every tensor lies in
  // this rank's arena.
  void run(const Call& call, size_t plan_bytes, bool symmetric);

  // For a symmetric algorithm that found a rank with a plain tensor: what the plan names for plain
  // tensors.
  void run_plain(const Call& call);
  // For an algorithm that is made of another call: what the plan names for that.
  void run_part(const Call& call, size_t plan_bytes);

  int rank() const { return rank_; }
  int world() const { return world_; }
  Segment& segment() { return *segment_; }
  const std::shared_ptr<Segment>& shared_segment() const { return segment_; }
  Waiter& waiter() { return waiter_; }
  Stamps* stamps() const { return waiter_.stamps; }
  Arena& arena() { return arena_; }

  // --- steps of an operation
  // -------------------------------------------------------------------------------------- Takes
  // the next operation number; returns once this rank's announcement of it may be written.
  void begin(const Call& call);
  // Says that chunk 0 can be read (staged), or where the data lies (offered, hoping, pulled).
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
  unsigned char* inline_data() { return own_line().data; }

  // --- memory
  // ------------------------------------------------------------------------------------------------------
  const Line& line_of(int r) const { return line_of(r, seq_); }
  const Line& line_of(int r, uint64_t seq) const { return segment_->control(r)->ring[seq % kRing]; }
  // Whether the peers are to read `call.in` in place: the plan wants it and the machine allows it.
  bool pulls(const Call& call) const;
  bool prefers_pull(const Call& call) const;  // what the plan alone says
  // Copies memory of rank `r`'s process, which said in this operation that it may be pulled.
  void pull(int r, uint64_t address, void* to, size_t bytes) {
    waiter_.pull({Awaited::line, r, seq_, seq_, mine_}, address, to, bytes);
  }
  // Memory rank `r` offered: `bytes` at `offset` of its arena, checked against its bounds.
  unsigned char* offered(int r, uint64_t offset, size_t bytes);
  void reduce(const Call& call, void* out, const void* const* sources, size_t count) const {
    const During reducing(stamps(), Phase::reduce);
    reduce_->fn[static_cast<int>(call.dtype)][static_cast<int>(call.redop)](out, sources, world_,
                                                                            count);
  }
  // The two halves of a row's norm.
  AddFn add_rows(DType dtype) const { return reduce_->add[static_cast<int>(dtype)]; }
  NormFn norms(DType dtype) const { return reduce_->norm[static_cast<int>(dtype)]; }
  bool reduces(DType dtype, RedOp redop) const { return plan_.reduces(dtype, redop); }
  // As the plan has it, else as the row of the plain algorithm.
  size_t chunk_bytes() const {
    if (chunk_bytes_ == 0) fail("CommError", "an algorithm has chunks, its row no chunk_bytes");
    return chunk_bytes_;
  }
  bool late() const { return late_; }
  // The algorithm under way, which is a function of tvm-ffi's.
  void run_ffi(const Call& call);

 private:
  Line& own_line() { return me_->ring[seq_ % kRing]; }
  uint64_t end_of(uint64_t step) const { return first_ + (step + 1) * room_; }
  size_t ring_offset(uint64_t step) const { return (first_ + step * room_) % kRingBytes; }
  size_t offset_of(uint64_t step) const {
    return hot_ ? kRingBytes + hot_slot_ * kHotBytes : ring_offset(step);
  }
  void await_done(uint64_t seq);
  void compare(const Line& line, int r) {
    Descriptor theirs = line.what;
    theirs.source = mine_.source;
    const bool same = std::memcmp(&theirs, &mine_, sizeof(theirs)) == 0;
    if (!same || ((line.out_and_history ^ history_) & ~kOutBits) != 0) mismatch(r);
  }
  uint64_t first_difference(int r) const;
  std::string calls_of(uint64_t seq) const;
  [[noreturn]] void mismatch(int r);
  void check_agreement(const Call& call);
  struct Ffi;
  // All ranks add the same ones, before anything else lies in their arenas.
  void add_ffi(const Row& row, void* function);
  const Choice& plain_choice(const Call& call) const;
  Descriptor descriptor(const Call& call) const;
  void run_alone(const Call& call);
  void run_planned(const Call& call, size_t plan_bytes, bool symmetric);
  const Algorithm& algorithm(const Choice& choice) {
    running_ = static_cast<size_t>(choice.algorithm);
    return *algorithms_[running_];
  }

  std::shared_ptr<Segment> segment_;
  int rank_;
  int world_;
  bool checked_;
  const ReduceTable* reduce_;
  Waiter waiter_;
  Arena arena_;
  PlanTable plan_;
  std::vector<const Algorithm*> algorithms_;  // the native halves of the plan's rows
  std::vector<uint16_t> recorded_;            // their names' places in the record
  std::shared_ptr<Ffi> ffi_;                  // null: none
  size_t running_ = 0;                        // the one under way
  RankControl* me_;

  uint64_t seq_ = 0;             // the operation under way, or the last one
  uint64_t history_ = 0;         // a digest of all operations up to it
  uint64_t verdicts_ = 0;        // agreements checked (checked mode)
  uint64_t known_done_ = 0;      // every peer has finished this operation
  uint64_t known_consumed_ = 0;  // every peer has consumed up to here
  uint64_t first_ = 0;           // position of step 0
  uint64_t next_ = 0;            // where the next operation's chunks may start
  size_t room_ = kCacheLine;     // of one chunk in the ring
  bool prefers_hot_ = false;     // the plan wants a single small chunk in a hot slot
  bool prefers_pull_ = false;    // the plan wants peers to read large tensors in place
  bool hot_ = false;
  int hot_slot_ = 0;
  uint64_t hot_used_[kHotSlots] = {};  // the last operation in each hot slot
  size_t chunk_bytes_ = kMaxChunkBytes;
  size_t plan_bytes_ = 0;
  size_t bytes_ = 0;  // of the one under way
  bool inner_ = false;
  bool late_ = false;  // the announcement went out before chunk 0 was staged
  std::atomic<bool> busy_{false};
  const void* in_ = nullptr;
  uint64_t in_offset_ = 0;
  uint64_t out_offset_ = 0;
  Descriptor mine_{};
};

}  // namespace commlib::shm
