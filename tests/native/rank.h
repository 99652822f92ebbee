// A rank of the stress program: draws the next call with all others, makes it, and compares what it
// got.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "commlib/check.h"
#include "shm/algorithm.h"
#include "shm/mailbox.h"
#include "step.h"

namespace commlib::shm {

// What all ranks found.
struct Report {
  std::atomic<int> errors{0};
  std::atomic<uint64_t> calls{0};

  template <class... Parts>
  void complain(const Parts&... parts) {
    if (++errors <= 20) std::fprintf(stderr, "stress: %s\n", text(parts...).c_str());
  }
};

// A tensor of a rank: in its arena or not, rarely aligned.
class Tensor {
 public:
  Tensor(Group& group, Random& mine, size_t bytes) : group_(group) {
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

  unsigned char* data;

 private:
  Group& group_;
  bool in_arena_;
  unsigned char* memory_;
  std::vector<unsigned char> heap_;
};

// One rank: a thread of its own.
class Rank {
 public:
  Rank(Report& report, std::shared_ptr<Segment> segment, int rank, double timeout_s, bool checked,
       uint64_t seed)
      : report_(report),
        group_(segment, rank, timeout_s, reduce_table(""), checked),
        mailbox_(segment, rank, group_.waiter(), checked),
        checked_(checked),
        me_(rank),
        world_(group_.world()),
        shared_(seed),
        mine_(seed * 1000 + rank + 1) {
    group_.learn(rows());
    draw_plan();
  }

  // In a `short_round` nothing takes long, and no message makes a rank wait for one that waits.
  void one_call(bool short_round) {
    if (draw(shared_, 8) == 0) draw_plan();
    if (burst_ == 0) {
      op_ = drawn_op();
      if (op_ == Op::send_recv && short_round) op_ = Op::barrier;
      root_ = static_cast<int>(draw(shared_, world_));
      // Ranks run ahead of each other where not everyone waits for everyone.
      const bool runs_ahead =
          op_ == Op::broadcast || op_ == Op::reduce || op_ == Op::gather || op_ == Op::scatter;
      burst_ = runs_ahead && draw(shared_, 3) == 0 ? 40 : 1;
    }
    --burst_;
    const bool disagree = checked_ && world_ > 1 && draw(shared_, 20) == 0;
    const Step step(shared_, world_, op_, root_, short_round);
    linger();
    ++report_.calls;
    if (disagree) return disagreement(step);
    if (step.op == Op::send_recv) return exchange(step);
    if (step.op == Op::barrier) return group_.run(Call{Op::barrier, DType::u8}, 0, false);
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
    std::string plan;
    for (int op = 0; op < kOps; ++op) {
      for (const char* placement : {"plain", "symmetric"}) {
        const std::vector<std::string> fitting = algorithms_of(static_cast<Op>(op), placement);
        if (fitting.empty()) continue;
        plan +=
            text("rule op=", kOpNames[op], " placement=", placement, " mode=* dtype=* redop=*\n");
        for (const uint64_t limit :
             {uint64_t{64}, uint64_t{1024}, uint64_t{1} << draw(shared_, 22), UINT64_MAX}) {
          const std::string name = fitting[draw(shared_, fitting.size())];
          plan += text("range algorithm=", name, " max_bytes=", limit);
          if (is_chunked(static_cast<Op>(op), name))
            plan += text(" chunk_bytes=", 4096 << draw(shared_, 9), " hot=", draw(shared_, 2),
                         " pull=", draw(shared_, 2));
          plan += "\n";
        }
      }
    }
    group_.set_plan(plan);
  }

  // Any but those of rows, which need more than numbers of elements: tests in Python make them.
  Op drawn_op() {
    Op op = Op::all_reduce_rms_norm;
    while (planned_as(op) == Op::all_reduce_rms_norm) op = static_cast<Op>(draw(shared_, kOps));
    return op;
  }
  // What Python tells of the rows, in short: what is written here is all that these tests need.
  static std::string rows() {
    std::string rows;
    for (const Algorithm& known : Algorithm::all()) {
      const bool symmetric = known.name == std::string("shm_symmetric");
      const bool reduces = known.op == Op::all_reduce || known.op == Op::reduce ||
                           known.op == Op::reduce_scatter || known.op == Op::reduce_scatterv;
      const bool rooted = known.op == Op::broadcast || known.op == Op::reduce ||
                          known.op == Op::gather || known.op == Op::scatter;
      const auto word = [](bool yes) { return yes ? "yes" : "no"; };
      rows += text("algorithm op=", name_of(known.op), " name=", known.name,
                   " placement=", symmetric ? "symmetric" : "plain", " arena=", word(symmetric),
                   " kernel= reduces=", word(reduces), " rooted=", word(rooted),
                   " composed=no engine=no room=0 sms=0\n");
      for (const DType dtype : kDtypes) {
        for (const char* redop : {"sum", "max"}) {
          rows += text("serves dtype=", name_of(dtype), " redop=", redop, "\n");
        }
      }
      if (!reduces) rows += "serves dtype=* redop=*\n";
      if (is_chunked(known.op, known.name)) rows += "param name=chunk_bytes default=131072\n";
    }
    return rows;
  }
  static bool is_chunked(Op op, const std::string& name) {
    return op != Op::barrier && op != Op::send_recv && name != "shm_symmetric";
  }
  static std::vector<std::string> algorithms_of(Op op, const std::string& placement) {
    std::vector<std::string> names;
    for (const Algorithm& known : Algorithm::all()) {
      const bool fits = placement == "symmetric" || known.name != std::string("shm_symmetric");
      if (known.op == op && known.run && fits) names.push_back(known.name);
    }
    return names;
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

  void collective(const Step& step) {
    const Shape shape = step.shape(me_, world_);
    const size_t element = size_of(step.dtype);
    Tensor x(group_, mine_, std::max(shape.in_count, shape.out_count) * element);
    Tensor other(group_, mine_, shape.out_count * element);
    // In place the shorter one is a block of the longer one, which starts at x.
    unsigned char* in = x.data + (shape.in_place ? shape.in_at : 0) * element;
    unsigned char* out = shape.in_place ? x.data + shape.out_at * element : other.data;
    fill(step, in, shape.in_count);

    int64_t to[kMaxRanks], from[kMaxRanks];  // elements of each rank
    int64_t starts[kMaxRanks] = {};          // of mine in each rank's input
    Call call{step.op, step.dtype, step.redop, step.root, in, out, step.count};
    if (step.uneven()) call.in_counts = to, call.count = step.total;
    if (step.op == Op::all_to_allv) {
      call.in_counts = to, call.out_counts = from, call.count = step.longest_split(world_);
      call.in_starts = starts;
    }
    for (int r = 0; r < world_; ++r) {
      to[r] = static_cast<int64_t>(step.uneven() ? step.size[r] : step.split(me_, r));
      from[r] = static_cast<int64_t>(step.split(r, me_));
      for (int q = 0; q < me_; ++q) starts[r] += static_cast<int64_t>(step.split(r, q));
    }
    const int64_t in_offset = group_.arena().offset_of(in, shape.in_count * element);
    const int64_t out_offset = group_.arena().offset_of(out, shape.out_count * element);
    call.in_offset = static_cast<uint64_t>(in_offset);
    call.out_offset = static_cast<uint64_t>(out_offset);
    const bool out_fits = step.op != Op::all_reduce || out_offset >= 0;
    const size_t elements = step.op == Op::all_to_allv ? call.count * world_ : step.total;
    group_.run(call, elements * element, shape.offers && in_offset >= 0 && out_fits);
    check(step, out);
  }

  void fill(const Step& step, unsigned char* in, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      put(step.dtype, in + i * size_of(step.dtype), value_of(step.key, me_, i));
    }
  }

  void check(const Step& step, const unsigned char* out) {
    size_t at = 0;
    for (const Piece& piece : step.pieces(me_, world_)) {
      for (size_t i = 0; i < piece.count; ++i, ++at) {
        const size_t index = piece.first + i;
        unsigned char wanted[16];
        put(step.dtype, wanted,
            step.reduces() ? step.reduced(world_, index) : value_of(step.key, piece.rank, index));
        const size_t element = size_of(step.dtype);
        if (std::memcmp(out + at * element, wanted, element) == 0) continue;
        return report_.complain("rank ", me_, " of ", world_, ": element ", at, " is wrong in ",
                                name_of(step.op), " of ", step.count, " ", name_of(step.dtype),
                                ", root ", step.root, step.in_place ? ", in place" : "", ", key ",
                                step.key);
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
      report_.complain("rank ", me_, " did not notice that ranks disagree");
    } catch (const Failure& failure) {
      if (failure.kind() != "ValueError") throw;
    }
  }

  void send(const Step& step, int to) {
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    fill(step, x.data, step.count);
    mailbox_.send(message(step, x.data), to);
  }
  void receive(const Step& step, int from) {
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    mailbox_.receive(message(step, x.data), from);
    Step sent = step;
    sent.root = from;
    check(sent, x.data);
  }
  void send_and_receive(const Step& step, int to, int from) {
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    Tensor out(group_, mine_, step.count * size_of(step.dtype));
    fill(step, x.data, step.count);
    mailbox_.exchange(message(step, x.data), to, message(step, out.data), from, step.key % 3 > 0);
    Step sent = step;
    sent.root = from;
    check(sent, out.data);
  }
  static Message message(const Step& step, unsigned char* data) {
    Descriptor what{};
    what.op = static_cast<uint64_t>(Op::send_recv);
    what.dtype = static_cast<uint64_t>(step.dtype);
    what.count = step.count;
    return {data, step.count * size_of(step.dtype), what};
  }

  // Around a ring, between two, everyone to one, crosswise among three, or both directions at once
  // on two threads.
  void exchange(const Step& step) {
    const int distance = static_cast<int>(step.key % world_);
    const int next = (me_ + distance) % world_, previous = (me_ + world_ - distance) % world_;
    switch (step.key / 64 % 7) {
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
      case 3: {
        const int a = step.root, b = (a + 1) % world_, c = (a + 2) % world_;
        if (world_ < 3) break;
        if (me_ == a) send(step, b), send(step, c);
        if (me_ == b) receive(step, c), receive(step, a);
        if (me_ == c) receive(step, a), send(step, b);
        break;
      }
      case 4:
        send_and_receive(step, next, previous);
        break;
      case 5:  // some ranks make one call of it, others two
        if (me_ % 2 == 0) return send_and_receive(step, next, previous);
        send(step, next);
        receive(step, previous);
        break;
      default:
        two_threads(step, next, previous);
    }
  }

  void two_threads(const Step& step, int next, int previous) {
    std::exception_ptr raised;
    Tensor x(group_, mine_, step.count * size_of(step.dtype));
    fill(step, x.data, step.count);
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

  Report& report_;
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

}  // namespace commlib::shm
