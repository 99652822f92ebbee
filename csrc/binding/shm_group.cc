// The shm backend for Python: the object for set-up and control.
#include <algorithm>
#include <memory>
#include <string>

#include "binding/arguments.h"
#include "binding/calls.h"
#include "binding/interpreter.h"
#include "binding/method.h"
#include "shm/mailbox.h"
#include "shm/pull.h"

namespace commlib::binding {
namespace {

// Everything a rank holds; tensors from empty() and bound functions keep it alive past close().
class ShmTarget final : public Target {
 public:
  std::shared_ptr<shm::Segment> segment;
  std::unique_ptr<shm::Group> group;
  std::unique_ptr<shm::Mailbox> mailbox;

  void place(int rank, int world) {
    rank_ = rank;
    world_ = world;
  }
  void stamp(const std::shared_ptr<Stamps>& owner) {
    stamps_owner_ = owner;
    stamps = group->waiter().stamps = owner.get();
  }
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  const char* backend() const override { return "shm"; }
  bool reduces(DType dtype, RedOp redop) const override { return group->reduces(dtype, redop); }

  void run(Call& call, size_t plan_bytes, Placed placed) override {
    const InterpreterLock lock(plan_bytes);
    group->run(call, plan_bytes, in_arena(call, placed));
  }
  bool exchange(const int64_t* mine, size_t count, int64_t* everyone) override {
    Call call{Op::all_gather, DType::i64};
    call.in = reinterpret_cast<const unsigned char*>(mine);
    call.out = reinterpret_cast<unsigned char*>(everyone);
    call.count = count;
    call.inner = true;
    run(call, call.bytes() * world_, {});
    return true;
  }
  void send(const Buffer& x, int to) override {
    const During copying(stamps, Phase::copy);
    const InterpreterLock lock(x.bytes());
    mailbox->send(message_of(x), to);
  }
  void receive(const Buffer& x, int from) override {
    const During copying(stamps, Phase::copy);
    const InterpreterLock lock(x.bytes());
    mailbox->receive(message_of(x), from);
  }
  void send_receive(const Buffer& x, int to, const Buffer& out, int from) override {
    const During copying(stamps, Phase::copy);
    const InterpreterLock lock(std::max(x.bytes(), out.bytes()));
    Call call{Op::send_recv, x.dtype};
    call.count = x.count;
    mailbox->exchange(message_of(x), to, message_of(out), from, group->prefers_pull(call));
  }

 private:
  // The tensors lie in this rank's arena; their places are announced to the peers.
  bool in_arena(Call& call, const Placed& placed) const {
    if (!placed.in) return false;
    const Buffer &in = *placed.in, &out = *placed.out;
    const int64_t in_offset = group->arena().offset_of(in.data, in.bytes());
    const int64_t out_offset =
        out.data == in.data ? in_offset : group->arena().offset_of(out.data, out.bytes());
    if (in_offset < 0 || out_offset < 0) return false;
    call.in_offset = static_cast<uint64_t>(in_offset);
    call.out_offset = static_cast<uint64_t>(out_offset);
    return true;
  }
  static shm::Message message_of(const Buffer& x) {
    shm::Descriptor what{};
    what.op = static_cast<uint64_t>(Op::send_recv);
    what.dtype = static_cast<uint64_t>(x.dtype);
    what.count = x.count;
    return {x.data, x.bytes(), what};
  }

  std::shared_ptr<Stamps> stamps_owner_;
};
using ShmTargetPtr = std::shared_ptr<ShmTarget>;

class ShmGroup {
 public:
  static constexpr const char* kName = "ShmGroup";

  // Rank 0 makes the memory (pid 0); the others open it through the maker's descriptor.
  ShmGroup(int64_t world, int64_t rank, int64_t arena_bytes, int64_t nonce, int64_t pid,
           int64_t fd) {
    if (world < 1 || world > kMaxRanks) {
      fail("Unsupported", "the shm backend serves 1 to ", kMaxRanks, " ranks of one host, not ",
           world);
    }
    const shm::Layout layout = {static_cast<int>(world), Allocator::size(arena_bytes)};
    const auto unique = static_cast<uint64_t>(nonce);
    target_->place(static_cast<int>(rank), static_cast<int>(world));
    target_->segment = pid == 0 ? shm::Segment::create(layout, unique)
                                : shm::Segment::attach(layout, unique, static_cast<int>(pid),
                                                       static_cast<int>(fd));
    target_->segment->back(layout.section(target_->rank()), layout.fixed_bytes());
    shm::RankControl* control = target_->segment->control(target_->rank());
    shm::publish_cores(control);
    shm::publish_process(control);
  }
  ~ShmGroup() { close(); }

  int64_t fd() { return target_->segment->fd(); }

  // Once every rank has attached.
  void start(double timeout_s, const std::string& isa, bool checked) {
    const ReduceTable* reduce = reduce_table(isa.c_str());
    if (!reduce) fail("Unsupported", "this CPU does not have x86-64-", isa, "; unset COMMLIB_ISA");
    target_->segment->close_descriptor();
    target_->group =
        std::make_unique<shm::Group>(target_->segment, target_->rank(), timeout_s, reduce, checked);
    target_->mailbox = std::make_unique<shm::Mailbox>(target_->segment, target_->rank(),
                                                      target_->group->waiter(), checked);
  }

  // Every algorithm of this backend, as its row says it; then the plan that chooses among them.
  void learn(const std::string& rows) { target_->group->learn(rows); }
  void set_plan(const std::string& plan) { target_->group->set_plan(plan); }
  // Calls from now on are, or are not, part of another one.
  void set_inner(bool inner) { target_->group->set_inner(inner); }

  std::unique_ptr<Calls> calls() { return std::make_unique<Calls>(Calls{target_}); }

  // One-dimensional bytes in the arena; the tensor keeps the memory alive.
  Object* empty(int64_t bytes) { return arena_tensor(target_, bytes, {kCpu, 0}); }

  // Whether a tensor lies in the arena.
  bool holds(const Tensor& x) {
    const auto bytes = static_cast<size_t>(x.numel() * x.item_bytes());
    return target_->group->arena().offset_of(x.data(), bytes) >= 0;
  }

  // Stamps the calls from now on: a tensor of what Stamps keeps. Room for none: no longer.
  Object* stamp(int64_t room) {
    target_->open();
    return stamped(*target_, room);
  }

  // Whether a message of that rank waits to be received.
  bool has_message(int64_t src) {
    target_->open();
    rank_in_world(src, "src", target_->world());
    return target_->mailbox->has_message(static_cast<int>(src));
  }

  void check() {
    target_->open();
    target_->group->waiter().check_peers();
  }
  void abort(const std::string& why) {
    if (target_->group && !target_->closed())
      target_->group->waiter().record_ending("CommError", why);
  }
  // In a forked child: the memory is the parent's to close.
  void abandon() { target_->close(); }
  void close() {
    if (target_->closed()) return;
    target_->close();
    if (target_->segment) target_->segment->control(target_->rank())->closed.store(1);
    if (target_->group) target_->group->waiter().announce_close();
  }

 private:
  ShmTargetPtr target_ = std::make_shared<ShmTarget>();
};

std::unique_ptr<ShmGroup> open_shm(int64_t world, int64_t rank, int64_t arena_bytes, int64_t nonce,
                                   int64_t pid, int64_t fd) {
  const Unlocked unlocked;
  return std::make_unique<ShmGroup>(world, rank, arena_bytes, nonce, pid, fd);
}

int64_t max_shm_ranks() { return kMaxRanks; }

// What a rank's section takes before anything lies in its arena.
int64_t shm_section_bytes(int64_t world) {
  return static_cast<int64_t>(shm::Layout{static_cast<int>(world), 0}.section_bytes());
}

COMMLIB_MODULE(module) {
  module.add({
      COMMLIB_METHOD("open_shm", open_shm, "world, rank, arena_bytes, nonce, pid, fd"),
      COMMLIB_METHOD("max_shm_ranks", max_shm_ranks, ""),
      COMMLIB_METHOD("shm_section_bytes", shm_section_bytes, "world"),
  });
  module.add_class<ShmGroup>({
      COMMLIB_METHOD("fd", ShmGroup::fd, ""),
      COMMLIB_METHOD("start", ShmGroup::start, "timeout_s, isa, checked"),
      COMMLIB_METHOD("learn", ShmGroup::learn, "rows"),
      COMMLIB_METHOD("set_plan", ShmGroup::set_plan, "plan"),
      COMMLIB_METHOD("set_inner", ShmGroup::set_inner, "inner"),
      COMMLIB_METHOD("calls", ShmGroup::calls, ""),
      COMMLIB_METHOD("empty", ShmGroup::empty, "num_bytes", "Tensor"),
      COMMLIB_METHOD("holds", ShmGroup::holds, "x"),
      COMMLIB_METHOD("stamp", ShmGroup::stamp, "room", "Tensor | None"),
      COMMLIB_METHOD("has_message", ShmGroup::has_message, "src"),
      COMMLIB_METHOD("check", ShmGroup::check, ""),
      COMMLIB_METHOD("abort", ShmGroup::abort, "why"),
      COMMLIB_METHOD("abandon", ShmGroup::abandon, ""),
      COMMLIB_METHOD("close", ShmGroup::close, ""),
  });
}

}  // namespace
}  // namespace commlib::binding
