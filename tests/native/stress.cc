// Threads as ranks on one segment: seeded random mixes of every operation and algorithm, every
// result compared.
//
//   stress [--seconds S] [--seed N] [--ranks W] [--faults-only]
//
// All ranks draw the calls of a round from one generator, so they agree on them; where their
// tensors lie, how they are aligned and when they come is drawn by each rank alone. One mapping
// serves all, so that TSan sees every access. A round ends well, or with a rank that stops, aborts
// or closes: then all others must say so and name it.
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "commlib/check.h"
#include "shm/algorithm.h"
#include "shm/mailbox.h"

namespace commlib::shm {
namespace {

using Random = std::mt19937_64;

constexpr size_t kArenaBytes = 24 << 20;
constexpr size_t kMostBytes = 6 << 20;  // of one tensor: more than a staging ring holds
constexpr size_t kMostElements = kMostBytes / 4;
constexpr double kTimeoutS = 60;
constexpr double kFaultTimeoutS = 0.3;
constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::i64, DType::u8};

std::atomic<int> errors{0};
std::atomic<uint64_t> calls_made{0};

template <class... Parts>
void complain(const Parts&... parts) {
  if (++errors <= 20) std::fprintf(stderr, "stress: %s\n", text(parts...).c_str());
}

size_t draw(Random& random, size_t below) {
  return std::uniform_int_distribution<size_t>(0, below - 1)(random);
}

// A tensor of a rank: in its arena or not, rarely aligned.
class Tensor {
 public:
  Tensor(Group& group, Random& mine, size_t bytes) : group_(group), bytes_(bytes) {
    in_arena_ = draw(mine, 2) == 0;
    const size_t shift = draw(mine, 4) == 0 ? draw(mine, 70) : 0;
    if (in_arena_) {
      memory_ = static_cast<unsigned char*>(group.arena().allocate(bytes + shift));
    } else {
      heap_.resize(bytes + shift + 1);
      memory_ = heap_.data();
    }
    data = memory_ + shift;
    std::memset(data, 0x5a, bytes);
  }
  ~Tensor() {
    if (in_arena_) group_.arena().free(memory_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  int64_t offset() const { return group_.arena().offset_of(data, bytes_); }

  unsigned char* data;

 private:
  Group& group_;
  size_t bytes_;
  bool in_arena_;
  unsigned char* memory_;
  std::vector<unsigned char> heap_;
};

// Small whole numbers: their sums are exact in every type, or wrap.
unsigned value_of(uint64_t key, int rank, size_t i) {
  return static_cast<unsigned>((key + 7 * rank + i * (2 * rank + 3)) % 23);
}

template <class T>
void put(unsigned char* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

void put(DType dtype, unsigned char* to, unsigned value) {
  const float real = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &real, 4);
  switch (dtype) {
    case DType::f32:
      return put(to, bits);
    case DType::bf16:
      return put(to, static_cast<uint16_t>(bits >> 16));
    case DType::i64:
      return put(to, static_cast<int64_t>(value));
    default:
      return put(to, static_cast<uint8_t>(value));
  }
}

// One call as all ranks see it; blocks of `size[r]` elements start at `start[r]`.
struct Step {
  Op op;
  DType dtype;
  RedOp redop;
  int root;
  bool in_place;
  uint64_t key;
  size_t count;  // of one block
  size_t size[kMaxRanks];
  size_t start[kMaxRanks];
  size_t total = 0;

  Step(Random& shared, int world, Op op, int root) : op(op), root(root) {
    dtype = kDtypes[draw(shared, 4)];
    redop = draw(shared, 2) ? RedOp::sum : RedOp::max;
    in_place = draw(shared, 3) == 0;
    key = shared() >> 8;
    const int blocks = is_whole() ? 1 : world;
    const size_t most = std::min(kMostBytes / size_of(dtype), kMostElements) / blocks;
    const size_t tried[] = {most, most / 20, 4096, 100, 100, 100, 8, 8, 8, 8, 8, 8};
    count = draw(shared, tried[draw(shared, 12)] + 2);
    for (int r = 0; r < blocks; ++r) {
      size[r] = uneven() ? draw(shared, count + 1) : count;
      start[r] = total;
      total += size[r];
    }
  }
  bool is_whole() const {
    return op == Op::all_reduce || op == Op::broadcast || op == Op::reduce || op == Op::send_recv;
  }
  bool uneven() const { return op == Op::all_gatherv || op == Op::reduce_scatterv; }
  bool reduces() const {
    return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter ||
           op == Op::reduce_scatterv;
  }
  // all_to_allv: what rank `from` sends to rank `to`.
  size_t split(int from, int to) const {
    return (count * (from + 2 * to + 1) / 7 + key % 5) % (count + 1);
  }
  unsigned reduced(int world, size_t i) const {
    unsigned result = value_of(key, 0, i);
    for (int r = 1; r < world; ++r) {
      const unsigned value = value_of(key, r, i);
      result = redop == RedOp::sum ? result + value : std::max(result, value);
    }
    return result;
  }
};

// One rank: a thread of its own.
class Rank {
 public:
  Rank(std::shared_ptr<Segment> segment, int rank, double timeout_s, bool checked, uint64_t seed)
      : group_(segment, rank, timeout_s, reduce_table(""), checked),
        mailbox_(segment, rank, group_.waiter(), checked),
        checked_(checked),
        me_(rank),
        world_(group_.world()),
        shared_(seed),
        mine_(seed * 1000 + rank + 1) {
    draw_plan();
  }

  void one_call(bool messages) {
    if (draw(shared_, 8) == 0) draw_plan();
    if (burst_ == 0) {
      op_ = static_cast<Op>(draw(shared_, kOps));
      if (op_ == Op::send_recv && !messages) op_ = Op::barrier;
      root_ = static_cast<int>(draw(shared_, world_));
      // Ranks run ahead of each other where not everyone waits for everyone.
      const bool runs_ahead =
          op_ == Op::broadcast || op_ == Op::reduce || op_ == Op::gather || op_ == Op::scatter;
      burst_ = runs_ahead && draw(shared_, 3) == 0 ? 40 : 1;
    }
    --burst_;
    const bool disagree = checked_ && world_ > 1 && draw(shared_, 20) == 0;
    const Step step(shared_, world_, op_, root_);
    linger();
    ++calls_made;
    if (disagree) return disagreement(step);
    if (step.op == Op::send_recv) return exchange(step);
    if (step.op == Op::barrier) return run(step, Call{Op::barrier, DType::u8}, 0, false);
    collective(step);
  }

  void abort() { group_.waiter().record_ending("CommError", text("rank ", me_, " aborted")); }
  void close() {
    group_.segment().control(me_)->closed.store(1);
    group_.waiter().announce_close();
  }

 private:
  // All ranks have the same plan, and change it at the same call.
  void draw_plan() {
    group_.plan().clear();
    for (int op = 0; op < kOps; ++op) {
      for (const bool symmetric : {false, true}) {
        std::vector<Choice> ranges;
        for (const uint64_t limit :
             {uint64_t{64}, uint64_t{1024}, uint64_t{1} << draw(shared_, 22), UINT64_MAX}) {
          const int algorithm = draw_algorithm(static_cast<Op>(op), symmetric);
          const size_t chunk = size_t{4096} << draw(shared_, 9);
          if (algorithm >= 0) ranges.push_back({limit, algorithm, chunk, draw(shared_, 2) == 0});
        }
        if (!ranges.empty()) group_.plan().add(static_cast<Op>(op), symmetric, -1, -1, ranges);
      }
    }
  }

  int draw_algorithm(Op op, bool symmetric) {
    std::vector<int> fitting;
    for (int id = 0; id < num_algorithms(); ++id) {
      const Algorithm& known = algorithm(id);
      if (known.op == op && known.run && (symmetric || !known.symmetric)) fitting.push_back(id);
    }
    return fitting.empty() ? -1 : fitting[draw(shared_, fitting.size())];
  }

  void linger() {
    switch (draw(mine_, 24)) {
      case 0:
        usleep(static_cast<unsigned>(draw(mine_, 1500)));
        break;
      case 1:
      case 2:
      case 3:
        sched_yield();
        break;
      default:
        for (size_t i = draw(mine_, 40); i > 0; --i) relax();
    }
  }

  void run(const Step& step, const Call& call, size_t plan_bytes, bool symmetric) {
    try {
      group_.run(call, plan_bytes, symmetric);
    } catch (const Failure& failure) {
      throw Failure(failure.kind(),
                    text(failure.what(), " [", name_of(step.op), ", key ", step.key, "]"));
    }
  }

  void collective(const Step& step) {
    const size_t element = size_of(step.dtype);
    const bool is_root = me_ == step.root;
    // Elements of input and output, and where the one starts in the other in place.
    size_t in_count = step.total, out_count = step.total, in_at = 0, out_at = 0;
    int64_t to[kMaxRanks], from[kMaxRanks], sizes[kMaxRanks];
    size_t longest = 0;
    for (int r = 0; r < world_; ++r) sizes[r] = static_cast<int64_t>(step.size[r]);
    Call call{step.op, step.dtype, step.redop, step.root};
    call.count = step.count;
    bool offers = true, in_place = step.in_place;
    switch (step.op) {
      case Op::broadcast:
        in_place = true, offers = is_root;
        break;
      case Op::reduce:
        offers = false;
        break;
      case Op::all_gatherv:
        call.in_counts = sizes, call.count = step.total;
        [[fallthrough]];
      case Op::all_gather:
        in_count = step.size[me_], in_at = step.start[me_];
        break;
      case Op::reduce_scatterv:
        call.in_counts = sizes, call.count = step.total;
        [[fallthrough]];
      case Op::reduce_scatter:
        out_count = step.size[me_], out_at = step.start[me_];
        break;
      case Op::gather:
        in_count = step.count, in_at = is_root ? step.start[me_] : 0, offers = false;
        break;
      case Op::scatter:
        out_count = step.count, out_at = is_root ? step.start[me_] : 0, offers = false;
        break;
      case Op::all_to_allv:
        in_place = offers = false;
        in_count = out_count = 0;
        for (int r = 0; r < world_; ++r) {
          in_count += to[r] = static_cast<int64_t>(step.split(me_, r));
          out_count += from[r] = static_cast<int64_t>(step.split(r, me_));
          for (int q = 0; q < world_; ++q) longest = std::max(longest, step.split(q, r));
        }
        call.in_counts = to, call.out_counts = from, call.count = longest;
        break;
      default:
        break;
    }
    Tensor x(group_, mine_, std::max(in_count, out_count) * element);
    Tensor other(group_, mine_, out_count * element);
    // In place the shorter one is a block of the longer one, which starts at x.
    unsigned char* in = x.data + (in_place ? in_at : 0) * element;
    unsigned char* out = in_place ? x.data + out_at * element : other.data;
    fill(step, in, in_count, element);
    call.in = in, call.out = out;
    const int64_t in_offset = group_.arena().offset_of(in, in_count * element);
    const int64_t out_offset = group_.arena().offset_of(out, out_count * element);
    const bool symmetric =
        offers && in_offset >= 0 && (step.op != Op::all_reduce || out_offset >= 0);
    if (symmetric) call.in_offset = static_cast<uint64_t>(in_offset);
    if (symmetric && out_offset >= 0) call.out_offset = static_cast<uint64_t>(out_offset);
    run(step, call, (step.op == Op::all_to_allv ? longest * world_ : step.total) * element,
        symmetric);
    check(step, out, out_count, element);
  }

  void fill(const Step& step, unsigned char* in, size_t in_count, size_t element) {
    for (size_t i = 0; i < in_count; ++i)
      put(step.dtype, in + i * element, value_of(step.key, me_, i));
  }

  void check(const Step& step, const unsigned char* out, size_t out_count, size_t element) {
    const bool root_only = step.op == Op::reduce || step.op == Op::gather;
    if (root_only && me_ != step.root) return;
    size_t i = 0;
    const auto expect = [&](unsigned value) {
      unsigned char wanted[16];
      put(step.dtype, wanted, value);
      if (std::memcmp(out + i * element, wanted, element) == 0) return ++i, true;
      complain("rank ", me_, " of ", world_, ": ", name_of(step.op), " of ", step.count, " ",
               name_of(step.dtype), ", root ", step.root, step.in_place ? ", in place" : "",
               ", key ", step.key, ": element ", i, " of ", out_count, " is wrong");
      return false;
    };
    const auto block = [&](int r, size_t first, size_t count) {
      for (size_t k = 0; k < count; ++k) {
        if (!expect(value_of(step.key, r, first + k))) return false;
      }
      return true;
    };
    if (step.reduces()) {
      const size_t first =
          step.op == Op::reduce_scatter || step.op == Op::reduce_scatterv ? step.start[me_] : 0;
      while (i < out_count && expect(step.reduced(world_, first + i))) {
      }
    } else if (step.op == Op::broadcast) {
      block(step.root, 0, out_count);
    } else if (step.op == Op::scatter) {
      block(step.root, step.start[me_], out_count);
    } else {
      for (int r = 0; r < world_; ++r) {
        size_t first = step.op == Op::all_to_all ? step.start[me_] : 0;
        for (int q = 0; step.op == Op::all_to_allv && q < me_; ++q) first += step.split(r, q);
        if (!block(r, first, step.op == Op::all_to_allv ? step.split(r, me_) : step.size[r]))
          return;
      }
    }
  }

  // One rank passes another count: all must say so, and go on.
  void disagreement(const Step& step) {
    Call call{Op::broadcast, step.dtype, RedOp::sum, step.root};
    std::vector<unsigned char> data((step.count + 1) * size_of(step.dtype));
    call.in = call.out = data.data();
    call.count = step.count + (me_ == step.root);
    try {
      group_.run(call, call.bytes(), false);
      complain("rank ", me_, " did not notice that ranks disagree");
    } catch (const Failure& failure) {
      if (failure.kind() != "ValueError") throw;
    }
  }

  void send(const Step& step, int to) {
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    fill(step, x.data, step.count, size_of(step.dtype));
    mailbox_.send(message(step, x.data), to);
  }
  void receive(const Step& step, int from) {
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    mailbox_.receive(message(step, x.data), from);
    Step as_broadcast = step;
    as_broadcast.op = Op::broadcast;
    as_broadcast.root = from;
    check(as_broadcast, x.data, step.count, size_of(step.dtype));
  }
  static Message message(const Step& step, unsigned char* data) {
    Descriptor what{};
    what.op = static_cast<uint64_t>(Op::send_recv);
    what.dtype = static_cast<uint64_t>(step.dtype);
    what.count = step.count;
    return {data, step.count * size_of(step.dtype), what};
  }

  // Around a ring, between two, everyone to one, or both directions at once on two threads.
  void exchange(const Step& step) {
    const int distance = static_cast<int>(step.key % world_);
    const int next = (me_ + distance) % world_, previous = (me_ + world_ - distance) % world_;
    switch (step.key / 64 % 4) {
      case 0:
        send(step, next);
        receive(step, previous);
        break;
      case 1: {
        const int partner = me_ ^ 1;
        if (partner >= world_) break;
        for (int i = 0; i < 2; ++i) send(step, partner);
        for (int i = 0; i < 2; ++i) receive(step, partner);
        break;
      }
      case 2:
        if (me_ != step.root) return send(step, step.root);
        for (int i = 1; i < world_; ++i) receive(step, (me_ + i) % world_);
        break;
      default:
        two_threads(step, next, previous);
    }
  }

  void two_threads(const Step& step, int next, int previous) {
    std::exception_ptr raised;
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    fill(step, x.data, step.count, size_of(step.dtype));
    std::thread sender([&] {
      try {
        mailbox_.send(message(step, x.data), next);
      } catch (...) {
        raised = std::current_exception();
      }
    });
    try {
      receive(step, previous);
    } catch (...) {
      sender.join();
      throw;
    }
    sender.join();
    if (raised) std::rethrow_exception(raised);
  }

  Group group_;
  Mailbox mailbox_;
  bool checked_;
  int me_;
  int world_;
  Random shared_;  // the same on every rank
  Random mine_;
  Op op_ = Op::barrier;
  int root_ = 0;
  int burst_ = 0;  // more calls of this operation with this root
};

enum class End { well, stops, aborts, closes };

// What the survivors must hear about rank `who`.
bool names(const Failure& failure, End end, int who) {
  const std::string said = failure.what();
  const std::string rank = text("rank ", who);
  if (end == End::stops)
    return failure.kind() == "CommTimeout" && said.find(rank + " did not come to ") == 0;
  if (end == End::aborts) return failure.kind() == "CommError" && said.find(rank + " aborted") == 0;
  return failure.kind() == "PeerLost" && said.find(rank + " closed its communicator") == 0;
}

void round(uint64_t seed, int world, End end) {
  Random random(seed);
  const bool checked = draw(random, 4) == 0;
  const bool faulty = end != End::well;
  const int calls = faulty ? 200 : 100;
  const int culprit = faulty ? static_cast<int>(draw(random, world)) : -1;
  const int last = static_cast<int>(draw(random, 30));
  const auto segment = Segment::create({world, kArenaBytes + draw(random, 5000)}, seed);
  for (int r = 0; r < world; ++r) {
    segment->back(segment->layout().section(r), segment->layout().fixed_bytes());
    segment->control(r)->cpu.store(-1);
    segment->control(r)->pid.store(getpid());
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([=] {
      const auto where = [=] {
        return text("rank ", r, " of ", world, ", seed ", seed, checked ? ", checked" : "", ": ");
      };
      try {
        Rank rank(segment, r, end == End::stops ? kFaultTimeoutS : kTimeoutS, checked, seed);
        for (int i = 0; i < calls; ++i) {
          if (r == culprit && i == last) {
            if (end == End::aborts) rank.abort();
            if (end == End::closes) rank.close();
            return;
          }
          rank.one_call(!faulty);
        }
        if (faulty) complain(where(), "did not notice that rank ", culprit, " is gone");
      } catch (const Failure& failure) {
        if (!names(failure, end, culprit)) complain(where(), failure.kind(), ": ", failure.what());
      } catch (const std::exception& error) {
        complain(where(), error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace commlib::shm

int main(int argc, char** argv) {
  using namespace commlib::shm;
  double seconds = 5;
  uint64_t seed = 1;
  int ranks = 0;
  bool faults_only = false;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "0";
    if (name == "--faults-only") faults_only = true;
    if (name == "--seconds") seconds = std::atof(value);
    if (name == "--seed") seed = std::strtoull(value, nullptr, 10);
    if (name == "--ranks") ranks = std::atoi(value);
  }
  alarm(static_cast<unsigned>(seconds) + 120);  // a hang is a failure
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  constexpr int kWorlds[] = {2, 3, 4, 1, 7};  // mostly more ranks than a small machine has cores
  constexpr End kEnds[] = {End::stops, End::aborts, End::closes};
  int rounds = 0;
  for (; spent() < seconds && errors == 0; ++rounds, ++seed) {
    const int world = ranks > 0 ? ranks : kWorlds[rounds % 5];
    const bool faulty = world > 1 && (faults_only || rounds % 8 == 7);
    round(seed, world, faulty ? kEnds[rounds / 8 % 3] : End::well);
  }
  std::printf("stress: %d rounds, %llu calls in %.1f s, %d errors\n", rounds,
              static_cast<unsigned long long>(calls_made), spent(), errors.load());
  return errors == 0 ? 0 : 1;
}
