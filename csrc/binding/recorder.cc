#include "binding/recorder.h"

#include "binding/calls.h"
#include "binding/method.h"
#include "plan/row.h"

namespace commlib::binding {
namespace {

// What this thread is in.
struct Under {
  uint64_t number = 0;  // of a collective
  size_t bytes = 0;
  Op op = Op::barrier;
  uint64_t messages[2] = {0, 0};
  std::optional<record::Waiting> waiting[2];
};
thread_local Under under;

// What ranks must agree on; of an all_to_allv they know their own sizes alone.
uint64_t agreed(Op op, const Call& call, int redop, int root) {
  const uint64_t count = op == Op::all_to_allv ? 0 : call.count;
  const auto part = [](auto value, int place) { return static_cast<uint64_t>(value) << place; };
  return part(op, 0) | part(call.dtype, 5) | part(redop & 15, 10) | part(root & 127, 14) |
         part(count, 21);
}

std::vector<int> narrowed(const std::vector<int64_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

std::unique_ptr<RecorderHandle> open_recorder(const std::string& backend, int64_t id, int64_t rank,
                                              double timeout_s, const std::vector<int64_t>& pids) {
  const record::Identity identity = {backend.c_str(),
                                     static_cast<uint64_t>(id),
                                     static_cast<int>(rank),
                                     static_cast<int>(pids.size()),
                                     timeout_s,
                                     narrowed(pids)};
  if (pids.size() > kMaxRanks)
    fail("ValueError", "a record has room for ", kMaxRanks, " ranks, not for ", pids.size());
  return std::make_unique<RecorderHandle>(RecorderHandle{std::make_shared<Recorder>(identity)});
}

COMMLIB_MODULE(module) {
  module.add(
      {COMMLIB_METHOD("open_recorder", open_recorder, "backend, id, rank, timeout_s, pids")});
  module.add_class<RecorderHandle>({
      COMMLIB_METHOD("enter", RecorderHandle::enter, "op, dtype, count, redop, root"),
      COMMLIB_METHOD("leave", RecorderHandle::leave, ""),
      COMMLIB_METHOD("ended", RecorderHandle::ended, "kind, message"),
      COMMLIB_METHOD("close", RecorderHandle::close, ""),
  });
}

}  // namespace

Recorder::Recorder(const record::Identity& identity)
    : record_(identity),
      knows_ends_(identity.backend == std::string("torch")),
      sent_(static_cast<size_t>(identity.world)),
      received_(static_cast<size_t>(identity.world)) {}

void Recorder::enter(const Call& call, int redop, int root) {
  const Op op = call.rows ? call.rows->op : call.op;
  const auto code = redop < 0 ? record::kNoReduction : static_cast<uint8_t>(redop);
  under.number = ++calls_;
  under.op = op;
  under.bytes = call.bytes();
  record_.enter(under.number,
                {agreed(op, call, redop, root), call.count, 0, 0, static_cast<int16_t>(root),
                 static_cast<uint8_t>(op), static_cast<uint8_t>(call.dtype), code, 0},
                under.bytes);
}

// What comes is entered last, for readers that look which of both a thread waits for.
void Recorder::enter_message(const std::optional<Call>& sent, const std::optional<Call>& received) {
  if (sent) enter_half(*sent, sent->root, record::kSends, sent_, 0);
  if (received) enter_half(*received, received->root, record::kReceives, received_, 1);
}

void Recorder::enter_half(const Call& message, int peer, record::Flag way, Counts& counts, int at) {
  const uint64_t number = ++counts[static_cast<size_t>(peer)];
  const record::What what = {agreed(Op::send_recv, message, -1, -1),
                             message.count,
                             number,
                             0,
                             static_cast<int16_t>(peer),
                             static_cast<uint8_t>(Op::send_recv),
                             static_cast<uint8_t>(message.dtype),
                             record::kNoReduction,
                             static_cast<uint8_t>(way)};
  under.messages[at] = record_.enter_message(what, message.bytes());
  under.waiting[at].emplace(record_, peer, number, way == record::kSends ? 1 : 2);
}

void Recorder::leave() {
  for (int at = 0; at < 2; ++at) {
    under.waiting[at].reset();
    if (under.messages[at]) record_.finish_message(under.messages[at]);
    under.messages[at] = 0;
  }
  if (under.number && knows_ends_)
    record_.finish_timed(under.number, under.bytes, static_cast<uint64_t>(under.op));
  under.number = 0;
}

void RecorderHandle::enter(const std::string& op, const std::string& dtype, int64_t count,
                           int64_t redop, int64_t root) {
  Call call{op_named(op), static_cast<DType>(dtype_named(dtype))};
  call.count = static_cast<size_t>(count);
  recorder->enter(call, static_cast<int>(redop), static_cast<int>(root));
}

void RecorderHandle::leave() { recorder->leave(); }

void RecorderHandle::ended(const std::string& kind, const std::string& message) {
  recorder->record().ended(kind.c_str(), message.c_str());
}

void RecorderHandle::close() { recorder->record().close(); }

}  // namespace commlib::binding
