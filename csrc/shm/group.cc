#include "shm/group.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "commlib/check.h"
#include "shm/exclusive.h"
#include "shm/pull.h"
#include "shm/rows.h"

namespace commlib::shm {
namespace {

enum Param { kChunkBytes, kHot, kPull };
const ParamNames kParams = {"chunk_bytes", "hot", "pull"};

constexpr uint64_t kMix = 0x9E3779B97F4A7C15;  // odd: what differs stays so, up to the upper bits
constexpr int kOthersComeMs = 100;             // ranks that disagree wait so long for the rest

// Ranks that make the same call.
struct Said {
  Descriptor what;
  std::vector<int> ranks;
};

void add_to(std::vector<Said>& calls, const Descriptor& what, int rank) {
  for (Said& call : calls) {
    if (raw(call.what) == raw(what)) return call.ranks.push_back(rank);
  }
  calls.push_back({what, {rank}});
}

}  // namespace

const Algorithm& add(const Algorithm& algorithm) {
  return Algorithm::all().emplace_back(algorithm);
}

Group::Group(std::shared_ptr<Segment> segment, int rank, double timeout_s,
             const ReduceTable* reduce, bool checked)
    : segment_(std::move(segment)),
      rank_(rank),
      world_(segment_->layout().world),
      checked_(checked),
      reduce_(reduce),
      waiter_(segment_, rank, timeout_s),
      arena_(segment_, rank),
      plan_(kParams),
      me_(segment_->control(rank)) {
  bool reads_peers = true;
  for (int r = 0; r < world_; ++r) reads_peers = reads_peers && can_read(segment_->control(r));
  me_->reads_peers.store(reads_peers);
}

void Group::learn(const std::string& rows) {
  plan_.learn(rows);
  for (int i = static_cast<int>(algorithms_.size()); i < plan_.algorithms(); ++i) {
    const Row& row = plan_.row(i);
    const Algorithm* native = Algorithm::find(row.op, row.name);
    if (!native)
      fail("CommError", name_of(row.op), " has no native ", row.name, " on shm; its file must say ",
           "COMMLIB_SHM_ALGORITHM(", name_of(row.op), ", ", row.name, ", function)");
    for (size_t at = 0; row.reduces && at < kReductions; ++at) {
      if (row.serves[at] && !reduce_->fn[at / kRedOps][at % kRedOps]) {
        fail("CommError", name_of(row.op), " by ", row.name,
             " cannot do what its row says: ", name_of(static_cast<RedOp>(at % kRedOps)), " of ",
             name_of(static_cast<DType>(at / kRedOps)));
      }
    }
    algorithms_.push_back(native);
    if (native->ffi && world_ > 1) add_ffi(row, native->ffi);
    recorded_.push_back(record::Record::name(row.name));
  }
}

void Group::run(const Call& call, size_t plan_bytes, bool symmetric) {
  const Exclusive exclusive(busy_, name_of(call.op), "a collective");
  const During planning(stamps(), Phase::plan);
  if (waiter_.ended()) waiter_.record().refuse(seq_ + 1, raw(descriptor(call)));
  waiter_.check_alive();
  if (world_ == 1) return run_alone(call);
  if (checked_) check_agreement(call);
  if (plan_bytes == 0 && call.op != Op::barrier) return;
  run_planned(call, plan_bytes, symmetric);
}

void Group::run_alone(const Call& call) {
  if (call.op == Op::all_reduce_rms_norm) {
    Norms norms(*this, call);
    for (size_t row = 0; row < norms.rows(); ++row) norms.run(row, norms.in(row));
  } else if (call.out != call.in && call.bytes() > 0) {
    std::memcpy(call.out, call.in, call.bytes());
  }
}

void Group::run_planned(const Call& call, size_t plan_bytes, bool symmetric) {
  plan_bytes_ = plan_bytes;
  late_ = false;
  const Choice& plain = plain_choice(call);
  // Chunks are cut as the plain rule says on every rank, wherever its tensors lie: peers must agree
  // on the steps. So must those whose tensors are not in the arena on the algorithm: symmetric ones
  // work beside the plain one, and nothing else runs on symmetric tensors.
  chunk_bytes_ = plain.params[kChunkBytes];
  prefers_hot_ = plain.params[kHot] != 0;
  prefers_pull_ = plain.params[kPull] != 0;
  const Choice* chosen = symmetric ? plan_.find(Mode::eager, true, call, plan_bytes) : &plain;
  algorithm(*chosen).run(*this, call);
}

void Group::run_part(const Call& call, size_t plan_bytes) { run_planned(call, plan_bytes, false); }

void Group::run_plain(const Call& call) { algorithm(plain_choice(call)).run(*this, call); }

const Choice& Group::plain_choice(const Call& call) const {
  const Choice* choice = plan_.find(Mode::eager, false, call, plan_bytes_);
  if (choice) return *choice;
  fail("Unsupported", "the plan has no rule for ", name_of(call.op), " of ", plan_bytes_,
       " bytes on shm");
}

// What ranks compare of rows, in one number: how many and how wide, or, with an epilogue of the
// user's, how many elements in all, and a digest.
static uint64_t count_of(const RowCall& call, uint64_t digest) {
  if (call.op == Op::all_reduce_rms_norm) return call.rows.rows << kWidthBits | call.rows.width;
  const uint64_t bits = (digest ^ digest >> 16 ^ digest >> 32 ^ digest >> 48) & 0xffff;
  return bits << kElementBits | (call.rows.rows * call.rows.width & ((1u << kElementBits) - 1));
}

Descriptor Group::descriptor(const Call& call) const {
  Descriptor what{};
  what.op = static_cast<uint64_t>(call.rows ? call.rows->op : call.op);
  what.dtype = static_cast<uint64_t>(call.dtype);
  what.redop = plan_.reduces(call.op) ? static_cast<uint64_t>(call.redop) : kNoRedop;
  what.root = plan_.is_rooted(call.op) ? static_cast<uint64_t>(call.root) : kNoRoot;
  what.inner = inner_ || call.inner;
  what.count = call.rows ? count_of(*call.rows, call.detail) : call.count;
  if (call.rows && call.rows->op == Op::all_reduce_rms_norm)
    what.root = static_cast<const NormCall*>(call.rows)->form();
  return what;
}

void Group::begin(const Call& call) {
  enter(stamps(), Phase::publish);
  ++seq_;
  late_ = false;
  mine_ = descriptor(call);
  history_ = (history_ ^ raw(mine_)) * kMix;
  bytes_ = call.bytes();
  waiter_.record().enter(seq_, raw(mine_), bytes_, recorded_[running_]);
  in_ = call.in;
  in_offset_ = call.in_offset;
  out_offset_ = call.out_offset;
  if (seq_ > kRing) await_done(seq_ - kRing);
}

// Returns once every peer has finished operation `seq`; most of the time that is known already.
void Group::await_done(uint64_t seq) {
  if (seq <= known_done_) return;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) waiter_.await(segment_->control(r)->done, {Awaited::done, r, seq_, seq, mine_});
  }
  known_done_ = seq;
}

void Group::publish(Source source) {
  Line& line = own_line();
  mine_.source = static_cast<uint64_t>(source);
  line.what = mine_;
  line.in_offset = source == Source::staged   ? offset_of(0)
                   : source == Source::pulled ? reinterpret_cast<uint64_t>(in_)
                                              : in_offset_;
  line.out_and_history = (out_offset_ & kOutBits) | (history_ & ~kOutBits);
  line.seq.store(seq_, std::memory_order_release);
  late_ = source == Source::hoping;
  waiter_.ring();
  enter(stamps(), Phase::copy);
}

unsigned char* Group::slot_to_fill(uint64_t step) {
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
  uint64_t least = UINT64_MAX;
  for (int r = 0; r < world_; ++r) {
    if (r == rank_) continue;
    const Counter& consumed = segment_->control(r)->consumed;
    waiter_.await(consumed, {Awaited::consumed, r, seq_, needed, mine_});
    const uint64_t theirs = consumed.load(std::memory_order_acquire);
    least = theirs < least ? theirs : least;
  }
  known_consumed_ = least;
  return slot;
}

void Group::post(uint64_t step) {
  if (step == 0 && !late_) return publish();
  me_->posted.store(end_of(step), std::memory_order_release);
  waiter_.ring();
  enter(stamps(), Phase::copy);
}

void Group::finish(bool synchronised) {
  me_->consumed.store(next_, std::memory_order_release);
  me_->done.store(seq_, std::memory_order_release);
  waiter_.record().finish(seq_, bytes_, mine_.op);
  waiter_.ring();
  if (!synchronised) return;
  // Every peer has announced this operation, so it is done with the one before and with its chunks.
  known_done_ = seq_ - 1;
  known_consumed_ = known_consumed_ < first_ ? first_ : known_consumed_;
}

void Group::finish_together() {
  finish(false);
  for (int r = 0; r < world_; ++r) {
    if (r != rank_)
      waiter_.await(segment_->control(r)->done, {Awaited::done, r, seq_, seq_, mine_});
  }
  known_done_ = seq_;
  known_consumed_ = next_;
}

bool Group::pulls(const Call& call) const {
  return prefers_pull_ && can_be_pulled(*segment_, rank_, call.in);
}

bool Group::prefers_pull(const Call& call) const {
  const Choice* choice = plan_.find(Mode::eager, false, call, call.bytes());
  return choice && choice->params[kPull] != 0;
}

unsigned char* Group::offered(int r, uint64_t offset, size_t bytes) {
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
uint64_t Group::first_difference(int r) const {
  for (uint64_t seq = seq_ > kRing ? seq_ - kRing + 1 : 1; seq < seq_; ++seq) {
    const Line &mine = line_of(rank_, seq), &theirs = line_of(r, seq);
    if (theirs.seq.load() == seq && raw(theirs.what) != raw(mine.what)) return seq;
  }
  return raw(line_of(r).what) == raw(mine_) ? 0 : seq_;
}

// Two ranks cannot tell which of them is wrong: those that come meanwhile say what they call, too.
void Group::mismatch(int r) {
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
  std::string said = seq > 0 ? calls_of(seq) : rank_list(both) + " parted earlier";
  if (seq != seq_) said += ", which shows in " + describe(mine_, seq_);
  waiter_.end("CommError", text("ranks disagree: ", said,
                                "; make the same calls in the same order (COMMLIB_CHECK=1 finds "
                                "the first difference)"));
}

// What each rank called as operation `seq`, those that are alone first.
std::string Group::calls_of(uint64_t seq) const {
  std::vector<Said> calls;
  for (int r = 0; r < world_; ++r) {
    const Line& line = line_of(r, seq);
    const bool now = r == rank_ && seq == seq_;  // may not be announced yet
    if (now || line.seq.load() == seq) add_to(calls, now ? mine_ : line.what, r);
  }
  std::stable_sort(calls.begin(), calls.end(), [](const Said& one, const Said& other) {
    return one.ranks.size() < other.ranks.size();
  });
  std::string said;
  for (const Said& call : calls)
    said +=
        text(said.empty() ? "" : ", ", rank_list(call.ranks), " called ", describe(call.what, seq));
  return said;
}

// Checked mode: every rank shows its call and sees all calls before any data moves. All ranks see
// the same table, so all raise the same error, and the communicator stays usable.
void Group::check_agreement(const Call& call) {
  const uint64_t number = ++verdicts_;
  const Descriptor mine = descriptor(call);
  Line& own = me_->verdict[number % 2];
  own.what = mine;
  me_->detail[number % 2].store(call.detail, std::memory_order_relaxed);
  own.seq.store(number, std::memory_order_release);
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
