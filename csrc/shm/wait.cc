#include "shm/wait.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "commlib/check.h"
#include "shm/pull.h"

namespace commlib::shm {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kYieldFor =
    400 * kMicrosecond;  // a late rank costs 5 % of a core at 50 ms, so yield no longer
constexpr int64_t kYieldCrowded = 50 * kMicrosecond;
constexpr int kSpreadEvery = 256;  // waits for a rank on the same core
constexpr int kGoneTries = 1000;   // ms: a process whose memory is gone has ended, or is about to
constexpr int64_t kLookEvery = 5 * kMillisecond;  // at peers' processes

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 * kMillisecond + t.tv_nsec;
}

int open_pidfd(int pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// Cores that any of the ranks may run on: pinned ranks see one each.
int cores_of_all(const Segment& segment) {
  int cores = 0;
  for (int word = 0; word < kMaxCores / 64; ++word) {
    uint64_t any = 0;
    for (int r = 0; r < segment.layout().world; ++r) any |= segment.control(r)->cores[word].load();
    cores += __builtin_popcountll(any);
  }
  return cores;
}

// As much of `reason` as fits `room` bytes, cut between two characters of UTF-8.
std::string beginning(const std::string& reason, size_t room) {
  if (reason.size() <= room) return reason;
  while (room > 0 && (reason[room] & 0xC0) == 0x80) --room;
  return reason.substr(0, room);
}

// As record::Wait has it.
uint32_t message_of(const Awaited& awaited) {
  return awaited.kind == Awaited::room ? 1 : awaited.kind == Awaited::message ? 2 : 0;
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i) out += i + 1 < ranks.size() ? ", " : " and ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

Waiter::Hooks Waiter::hooks;
thread_local bool Waiter::holds_interpreter = false;

void publish_cores(RankControl* control) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
  for (int core = 0; core < kMaxCores; ++core) {
    if (CPU_ISSET(core, &set)) control->cores[core / 64].fetch_or(uint64_t{1} << (core % 64));
  }
}

Waiter::Waiter(std::shared_ptr<Segment> segment, int rank, double timeout_s)
    : segment_(std::move(segment)),
      rank_(rank),
      world_(segment_->layout().world),
      timeout_s_(std::min(timeout_s, 1e9)),
      record_(identity_of(*segment_, rank, timeout_s)) {
  // With a core per rank a short spin is nearly always enough; with fewer, the awaited rank needs
  // this core to run.
  const bool crowded = cores_of_all(*segment_) < world_;
  brief_spins_ = crowded ? 4 : 100;
  spins_ = crowded ? 0 : 2000;
  yield_ns_ = crowded ? kYieldCrowded : kYieldFor;
  for (int r = 0; r < world_; ++r) {
    const int pid = segment_->control(r)->pid.load();
    const int fd = r == rank_ ? -1 : open_pidfd(pid);
    if (r != rank_ && fd < 0) {
      const int error = errno;
      for (const int other : pidfds_) {
        if (other >= 0) ::close(other);
      }
      if (error == ESRCH)
        fail("PeerLost", "rank ", r, " (process ", pid, ") died while the communicator was made");
      fail("Unsupported", "cannot watch process ", pid, " of rank ", r, ": ", std::strerror(error),
           "; the shm backend needs Linux 5.3 and one PID namespace for all ranks");
    }
    pidfds_.push_back(fd);
  }
}

Waiter::~Waiter() {
  for (const int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

bool Waiter::on_my_core(int rank) {
  const int cpu = sched_getcpu();
  segment_->control(rank_)->cpu.store(cpu, std::memory_order_relaxed);
  return rank != rank_ && segment_->control(rank)->cpu.load(std::memory_order_relaxed) == cpu;
}

// The kernel may leave ranks that yield to each other on one core for good while another idles. Of
// the ranks on a core those beyond its fair share move to the emptiest core; where a rank may run
// stays as it was.
void Waiter::spread() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  const auto core_of = [&](int r) {
    return segment_->control(r)->cpu.load(std::memory_order_relaxed);
  };
  const auto ranks_on = [&](int core, int below) {
    int count = 0;
    for (int r = 0; r < below; ++r) count += core_of(r) == core;
    return count;
  };
  const int before_me = ranks_on(core_of(rank_), rank_);
  if (before_me < (world_ + CPU_COUNT(&allowed) - 1) / CPU_COUNT(&allowed)) return;
  int emptiest = -1;
  for (int core = 0; core < kMaxCores; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (emptiest < 0 || ranks_on(core, world_) < ranks_on(emptiest, world_)) emptiest = core;
  }
  if (ranks_on(emptiest, world_) >= before_me) return;
  cpu_set_t target;
  CPU_ZERO(&target);
  CPU_SET(emptiest, &target);
  if (sched_setaffinity(0, sizeof(target), &target) == 0)
    sched_setaffinity(0, sizeof(allowed), &allowed);
  on_my_core(rank_);
}

void Waiter::await_long(const Counter& counter, const Awaited& awaited,
                        const std::function<void()>* progress) {
  // A rank that shares our core cannot come while we spin.
  const bool shared = on_my_core(awaited.rank);
  if (shared && ++shared_waits_ % kSpreadEvery == 0) spread();
  const int spins = shared ? 0 : spins_;
  for (int i = 0; i < spins; ++i) {
    if (counter.load(std::memory_order_acquire) >= awaited.value) return;
    relax();
  }
  if (!holds_interpreter || !hooks.release) return await_unlocked(counter, awaited, progress);
  void* state = hooks.release();
  holds_interpreter = false;
  const auto restore = [&] {
    hooks.reacquire(state);
    holds_interpreter = true;
  };
  try {
    await_unlocked(counter, awaited, progress);
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void Waiter::await_unlocked(const Counter& counter, const Awaited& awaited,
                            const std::function<void()>* progress) {
  const int64_t start = now_ns();
  const int64_t deadline = start + static_cast<int64_t>(timeout_s_ * 1e9);
  int64_t look_at = start + kLookEvery;
  int64_t now = start;
  const record::Waiting waiting(record_, awaited.rank, awaited.seq, message_of(awaited));
  while (counter.load(std::memory_order_acquire) < awaited.value) {
    check_alive();
    if (closed_.load()) {
      fail("Closed", "rank ", rank_, " closed the communicator while it was in ",
           describe(awaited));
    }
    if (progress) (*progress)();
    if (now - start < yield_ns_) {
      sched_yield();
    } else {
      const int64_t nap = now - start < 100 * kMillisecond ? kMillisecond : 4 * kMillisecond;
      sleep_briefly(counter, awaited.value, nap);
      if (hooks.interrupted && hooks.interrupted()) {
        record_ending("CommError", text("rank ", rank_, " was interrupted in ", describe(awaited)));
        throw Interrupted();
      }
    }
    now = now_ns();
    if (now >= look_at) {
      look_at_peers(counter, awaited);
      look_at = now + kLookEvery;
    }
    if (now >= deadline && counter.load(std::memory_order_acquire) < awaited.value)
      time_out(awaited);
  }
}

void Waiter::sleep_briefly(const Counter& counter, uint64_t value, int64_t nanoseconds) {
  RankControl* me = segment_->control(rank_);
  const uint32_t bell = me->bell.load();
  me->sleeping.fetch_add(1);
  segment_->header()->sleepers.fetch_add(1);
  if (counter.load(std::memory_order_acquire) < value) {
    const timespec nap = {0, nanoseconds};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&me->bell), FUTEX_WAIT, bell, &nap, nullptr, 0);
  }
  segment_->header()->sleepers.fetch_sub(1);
  me->sleeping.fetch_sub(1);
}

void Waiter::wake_all() {
  for (int r = 0; r < world_; ++r) {
    RankControl* peer = segment_->control(r);
    if (peer->sleeping.load() == 0) continue;
    peer->bell.fetch_add(1);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&peer->bell), FUTEX_WAKE, kMaxRanks, nullptr,
            nullptr, 0);
  }
}

void Waiter::look_at_peers(const Counter& counter, const Awaited& awaited) {
  for (int r = 0; r < world_; ++r) {
    const Line& line = newest_line(r);
    record_.saw(r, line.seq.load(), raw(line.what));
  }
  const auto satisfied = [&] { return counter.load(std::memory_order_acquire) >= awaited.value; };
  for (int r = 0; r < world_; ++r) {
    pollfd entry = {pidfds_[r], POLLIN, 0};
    const bool gone = r != rank_ && poll(&entry, 1, 0) > 0;
    const bool closed = segment_->control(r)->closed.load() != 0;
    if (closed && r == awaited.rank && r != rank_ && !satisfied()) {
      end("PeerLost", text("rank ", r, " closed its communicator while rank ", rank_,
                           " waits for it in ", describe(awaited)));
    }
    // A peer that closed first and then exited owes nothing to ranks that do not wait for it.
    if (gone && !closed && !satisfied()) {
      end("PeerLost", text("rank ", r, " (process ", segment_->control(r)->pid.load(),
                           ") died; rank ", rank_, " was in ", describe(awaited)));
    }
  }
}

void Waiter::check_peers() {
  check_alive();
  for (int r = 0; r < world_; ++r) {
    pollfd entry = {pidfds_[r], POLLIN, 0};
    if (r == rank_ || poll(&entry, 1, 0) <= 0 || segment_->control(r)->closed.load() != 0) continue;
    end("PeerLost", text("rank ", r, " (process ", segment_->control(r)->pid.load(), ") died"));
  }
}

void Waiter::pull(const Awaited& awaited, uint64_t address, void* to, size_t bytes) {
  const During copying(stamps, Phase::copy);
  const RankControl* peer = segment_->control(awaited.rank);
  const auto* from = reinterpret_cast<const void*>(address);
  const bool read = read_memory(peer->pid.load(), from, to, bytes);
  // What was read is good if the peer had not given up the operation by then.
  check_alive();
  if (read && peer->closed.load() == 0) return;
  for (int i = 0; i < kGoneTries; ++i) {
    usleep(1000);
    check_peers();
  }
  end("CommError", text("rank ", rank_, " cannot read the tensor of rank ", awaited.rank, " in ",
                        describe(awaited), ": it was freed, or the rank closed"));
}

const Counter& Waiter::counter_of(const Awaited& awaited, int rank) const {
  RankControl* control = segment_->control(rank);
  switch (awaited.kind) {
    case Awaited::line:
      return control->ring[awaited.seq % kRing].seq;
    case Awaited::consumed:
      return control->consumed;
    case Awaited::done:
      return control->done;
    default:
      return control->verdict[awaited.seq % 2].seq;
  }
}

const Line& Waiter::newest_line(int rank) const {
  const RankControl* control = segment_->control(rank);
  const Line* newest = &control->ring[0];
  for (const Line& line : control->ring)
    newest = line.seq.load() > newest->seq.load() ? &line : newest;
  return *newest;
}

// Whether rank `rank` has not done what is awaited, or not even come to that operation.
bool Waiter::is_behind(const Awaited& awaited, int rank) const {
  if (rank == rank_) return false;
  if (awaited.kind < Awaited::posted) return counter_of(awaited, rank).load() < awaited.value;
  const bool not_there =
      awaited.kind == Awaited::posted && newest_line(rank).seq.load() < awaited.seq;
  return rank == awaited.rank || not_there;
}

void Waiter::time_out(const Awaited& awaited) {
  // The ranks furthest behind are to blame: others that this one waits for may be waiting for them.
  std::vector<int> missing;
  uint64_t slowest = UINT64_MAX;
  for (int r = 0; r < world_; ++r) {
    const uint64_t seq = newest_line(r).seq.load();
    if (!is_behind(awaited, r) || seq > slowest) continue;
    if (seq < slowest) missing.clear();
    slowest = seq;
    missing.push_back(r);
  }
  if (missing.empty())
    missing.push_back(awaited.rank);  // it came this very moment: too late all the same
  std::string last;
  for (const int r : missing) {
    const Line& line = newest_line(r);
    const uint64_t seq = line.seq.load();
    last +=
        text("; rank ", r,
             seq ? " last entered " + shm::describe(line.what, seq) : " has entered nothing yet");
  }
  const bool of_pair = awaited.kind == Awaited::message || awaited.kind == Awaited::room;
  const std::string whose = of_pair ? text("rank ", rank_, "'s ") : "";
  end("CommTimeout",
      text(rank_list(missing), " did not come to ", whose, describe(awaited), " within ",
           timeout_s_, " s: rank ", rank_, " gave up waiting", last,
           ". Raise the timeout (timeout_s=, COMMLIB_TIMEOUT_S; timeout= of torch.distributed) "
           "if the work before it is that slow"));
}

std::string Waiter::describe(const Awaited& awaited) const {
  if (awaited.kind == Awaited::message)
    return text("recv from rank ", awaited.rank, " (message #", awaited.seq, ")");
  if (awaited.kind == Awaited::room)
    return text("send to rank ", awaited.rank, " (message #", awaited.seq, ")");
  return shm::describe(awaited.what, awaited.seq);
}

void Waiter::record_ending(const char* kind, const std::string& why) {
  Ending& ending = segment_->header()->ending;
  uint32_t none = 0;
  if (!ending.state.compare_exchange_strong(none, 1)) return;
  std::strncpy(ending.kind, kind, sizeof(ending.kind) - 1);
  std::strcpy(ending.text, beginning(why, sizeof(ending.text) - 1).c_str());
  ending.state.store(2, std::memory_order_release);
  wake_all();
}

void Waiter::end(const char* kind, const std::string& why) {
  // Told while all is as it was: ranks that hear of the end go on.
  const bool first = !ended();
  const std::string more = first && record::explain ? record::explain(record_.id(), kind) : "";
  record_ending(kind, more.empty() ? why : why + "\n" + more);
  throw_ending();
}

void Waiter::throw_ending() {
  const Ending& ending = segment_->header()->ending;
  // The rank that writes the reason may die before it is done: do not wait for it longer than a
  // moment.
  const int64_t deadline = now_ns() + 100 * kMillisecond;
  while (ending.state.load(std::memory_order_acquire) != 2 && now_ns() < deadline) sched_yield();
  if (ending.state.load(std::memory_order_acquire) != 2) {
    fail("CommError",
         "the communicator ended, and the rank that ended it died before it could say why");
  }
  record_.ended(ending.kind, ending.text);
  throw Failure(ending.kind, ending.text);
}

}  // namespace commlib::shm
