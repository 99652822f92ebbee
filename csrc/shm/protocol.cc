#include "shm/protocol.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "commlib/check.h"
#include "shm/pull.h"

namespace commlib::shm {
namespace {

constexpr uint64_t kMix = 0x9E3779B97F4A7C15;  // odd: what differs stays so, up to the upper bits
constexpr int kOthersComeMs = 100;             // ranks that disagree wait so long for the rest

// Ranks that make the same call.
struct CallGroup {
  Descriptor what;
  std::vector<int> ranks;
};

void add_to(std::vector<CallGroup>& calls, const Descriptor& what, int rank) {
  for (CallGroup& call : calls) {
    if (raw(call.what) == raw(what)) return call.ranks.push_back(rank);
  }
  calls.push_back({what, {rank}});
}

}  // namespace

Protocol::Protocol(std::shared_ptr<Segment> segment, int rank, double timeout_s)
    : segment_(std::move(segment)),
      rank_(rank),
      world_(segment_->layout().world),
      waiter_(segment_, rank, timeout_s),
      arena_(segment_, rank),
      me_(segment_->control(rank)) {
  bool reads_peers = true;
  for (int r = 0; r < world_; ++r) reads_peers = reads_peers && can_read(segment_->control(r));
  me_->reads_peers.store(reads_peers);
}

void Protocol::begin(const Call& call, const Descriptor& what, uint16_t name) {
  enter(stamps(), Phase::publish);
  ++seq_;
  late_ = false;
  mine_ = what;
  history_ = (history_ ^ raw(mine_)) * kMix;
  bytes_ = call.bytes();
  waiter_.record().enter(seq_, raw(mine_), bytes_, name);
  in_ = call.in;
  in_offset_ = call.in_offset;
  out_offset_ = call.out_offset;
  if (seq_ > kRing) await_done(seq_ - kRing);
}

// Returns once every peer has finished operation `seq`; most of the time that is known already.
void Protocol::await_done(uint64_t seq) {
  if (seq <= known_done_) return;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) waiter_.await(segment_->control(r)->done, {Awaited::done, r, seq_, seq, mine_});
  }
  known_done_ = seq;
}

void Protocol::publish(Source source) {
  Line& line = my_line();
  mine_.source = static_cast<uint64_t>(source);
  line.what = mine_;
  line.in_offset = source == Source::staged   ? offset_of(0)
                   : source == Source::pulled ? reinterpret_cast<uint64_t>(in_)
                                              : in_offset_;
  line.out_and_history = (out_offset_ & kOutBits) | (history_ & ~kOutBits);
  line.seq.store(seq_, std::memory_order_release);
  late_ = source == Source::symmetric_if_all;
  waiter_.ring();
  enter(stamps(), Phase::copy);
}

unsigned char* Protocol::slot_to_fill(uint64_t step) {
  enter(stamps(), Phase::publish);
  unsigned char* slot = segment_->staging(rank_) + offset_of(step);
  if (hot_) {
    await_done(hot_used_[hot_slot_]);
    hot_used_[hot_slot_] = seq_;
    return slot;
  }
  const uint64_t end = end_of(step);
  if (end <= known_consumed_ + kRingBytes) return slot;
  const uint64_t needed = end - kRingBytes;
  uint64_t slowest = UINT64_MAX;
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) continue;
    const Counter& consumed = segment_->control(r)->consumed;
    waiter_.await(consumed, {Awaited::consumed, r, seq_, needed, mine_});
    const uint64_t step = consumed.load(std::memory_order_acquire);
    slowest = step < slowest ? step : slowest;
  }
  known_consumed_ = slowest;
  return slot;
}

void Protocol::post(uint64_t step) {
  if (step == 0 && !late_) return publish();
  me_->posted.store(end_of(step), std::memory_order_release);
  waiter_.ring();
  enter(stamps(), Phase::copy);
}

void Protocol::finish(bool synchronised) {
  me_->consumed.store(next_, std::memory_order_release);
  me_->done.store(seq_, std::memory_order_release);
  waiter_.record().finish(seq_, bytes_, mine_.op);
  waiter_.ring();
  if (!synchronised) return;
  // Every peer has announced this operation, so it is done with the one before and with its chunks.
  known_done_ = seq_ - 1;
  known_consumed_ = known_consumed_ < first_ ? first_ : known_consumed_;
}

void Protocol::finish_together() {
  finish(false);
  for (int r = 0; r < world_; ++r) {
    if (r != rank_)
      waiter_.await(segment_->control(r)->done, {Awaited::done, r, seq_, seq_, mine_});
  }
  known_done_ = seq_;
  known_consumed_ = next_;
}

unsigned char* Protocol::offered(int r, uint64_t offset, size_t bytes) {
  const size_t room = segment_->layout().arena_bytes;
  if (offset > room || bytes > room - offset) {
    waiter_.end("CommError",
                text("rank ", r, " offered ", bytes, " bytes at ", offset, " of an arena of ", room,
                     " bytes in ", describe(mine_, seq_), "; its memory is damaged"));
  }
  return segment_->arena(r) + offset;
}

// The operation in which rank `r` and this one have parted: an earlier one if nobody read the
// other's announcement there. 0: none of those that both remember.
uint64_t Protocol::first_difference(int r) const {
  for (uint64_t seq = seq_ > kRing ? seq_ - kRing + 1 : 1; seq < seq_; ++seq) {
    const Line &mine = line_of(rank_, seq), &other = line_of(r, seq);
    if (other.seq.load() == seq && raw(other.what) != raw(mine.what)) return seq;
  }
  return raw(line_of(r).what) == raw(mine_) ? 0 : seq_;
}

// Two ranks cannot tell which of them is wrong: those that come meanwhile say what they call, too.
void Protocol::mismatch(int r) {
  for (int other = 0, ms = 0; other < world_ && ms < kOthersComeMs && !waiter_.ended();) {
    if (other == rank_ || line_of(other).seq.load() >= seq_) {
      ++other;
    } else {
      usleep(1000);
      ++ms;
    }
  }
  const uint64_t seq = first_difference(r);
  const std::vector<int> both = {std::min(rank_, r), std::max(rank_, r)};
  std::string calls = seq > 0 ? calls_of(seq) : rank_list(both) + " parted earlier";
  if (seq != seq_) calls += ", which shows in " + describe(mine_, seq_);
  waiter_.end("CommError", text("ranks disagree: ", calls,
                                "; make the same calls in the same order (COMMLIB_CHECK=1 finds "
                                "the first difference)"));
}

// What each rank called as operation `seq`, those that are alone first.
std::string Protocol::calls_of(uint64_t seq) const {
  std::vector<CallGroup> calls;
  for (int r = 0; r < world_; ++r) {
    const Line& line = line_of(r, seq);
    const bool now = r == rank_ && seq == seq_;  // may not be announced yet
    if (now || line.seq.load() == seq) add_to(calls, now ? mine_ : line.what, r);
  }
  std::stable_sort(calls.begin(), calls.end(), [](const CallGroup& one, const CallGroup& other) {
    return one.ranks.size() < other.ranks.size();
  });
  std::string calls_text;
  for (const CallGroup& call : calls)
    calls_text += text(calls_text.empty() ? "" : ", ", rank_list(call.ranks), " called ",
                       describe(call.what, seq));
  return calls_text;
}

void Protocol::check_agreement(const Descriptor& mine, uint64_t detail) {
  const uint64_t number = ++verdicts_;
  Line& line = me_->verdict[number % 2];
  line.what = mine;
  me_->detail[number % 2].store(detail, std::memory_order_relaxed);
  line.seq.store(number, std::memory_order_release);
  waiter_.ring();
  bool same = true;
  for (int r = 0; r < world_; ++r) {
    const Line& line = segment_->control(r)->verdict[number % 2];
    if (r != rank_) waiter_.await(line.seq, {Awaited::verdict, r, number, number, mine});
  }
  std::string table;
  const Descriptor first = segment_->control(0)->verdict[number % 2].what;
  const uint64_t first_detail = segment_->control(0)->detail[number % 2].load();
  for (int r = 0; r < world_; ++r) {
    const Descriptor what = segment_->control(r)->verdict[number % 2].what;
    const uint64_t detail = segment_->control(r)->detail[number % 2].load();
    same = same && std::memcmp(&what, &first, sizeof(what)) == 0 && detail == first_detail;
    table += text(r ? "; rank " : "rank ", r, ": ", describe(what, number));
    if (detail != first_detail) table += " with other sizes";
  }
  if (!same) fail("ValueError", "ranks disagree: ", table, "; make the same call on every rank");
}

}  // namespace commlib::shm
