#include "nccl/order.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "nccl/deadline.h"

namespace commlib::nccl {
namespace {

constexpr unsigned kSmallShare = 8;  // a small kernel has blocks for at most this part of a GPU

// The communicators of this process that have made calls.
struct Everyone {
  std::mutex mutex;
  std::vector<Order*> orders;
  int made = 0;
  bool made_clusters = false;  // or calls of NCCL's: two communicators need an order
};
Everyone& everyone() {
  static auto* const instance = new Everyone;
  return *instance;
}

}  // namespace

Order::Order() {
  check(cuda().cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  CUdevice device = 0;
  int count = 0;
  check(cuda().cuCtxGetDevice(&device), "cuCtxGetDevice");
  check(cuda().cuDeviceGetAttribute(&count, kMultiprocessorCount, device), "cuDeviceGetAttribute");
  multiprocessors_ = static_cast<unsigned>(count);
  check(cuda().cuEventCreate(&eager_.event, kEventDisableTiming), "cuEventCreate");
  check(cuda().cuEventCreate(&captured_.event, kEventDisableTiming), "cuEventCreate");
}

// With its first call: a world of one rank launches nothing that waits.
void Order::join() {
  Everyone& all = everyone();
  number_ = ++all.made;
  // Of the calls that others have made alone nothing is known: they may be anything.
  const Footprint anything = {grid_limit(multiprocessors_, true), kClusterNeeds};
  for (Order* other : all.orders) {
    for (Last* calls : {&other->eager_, &other->captured_})
      if (calls->made) calls->since[this] = anything;
  }
  all.orders.push_back(this);
}

void Order::leave() {
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.orders.erase(std::remove(all.orders.begin(), all.orders.end(), this), all.orders.end());
  for (Order* other : all.orders) {
    other->eager_.since.erase(this);
    other->captured_.since.erase(this);
  }
}

void Order::close() {
  leave();
  cuda().cuEventDestroy(eager_.event);
  cuda().cuEventDestroy(captured_.event);
}

std::vector<Order*> Order::others() const {
  std::vector<Order*> orders;
  for (Order* order : everyone().orders)
    if (order != this && order->context_ == context_) orders.push_back(order);
  return orders;
}

bool Order::has_others() const {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  return !others().empty();
}

void Order::wait_for(Last& calls, CUstream stream) {
  if (!calls.behind) {
    if (capture_of(calls.stream) != calls.capture) {
      fail(
          "ValueError",
          "the stream of an earlier call is being captured, and this call on another stream has to "
          "wait for that one; make it before the capture begins or after it has ended");
    }
    check(cuda().cuEventRecord(calls.event, calls.stream), "cuEventRecord");
    calls.behind = true;
  }
  check(cuda().cuStreamWaitEvent(stream, calls.event, 0), "cuStreamWaitEvent");
}

bool Order::before(CUstream stream, uint64_t capture, const Footprint& footprint,
                   bool lets_next_start) {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  if (number_ == 0) join();
  Last& own = last(capture);
  if (own.made && own.stream != stream && own.capture == capture) {
    many_streams_ = true;
    wait_for(own, stream);
  }
  coming_ = footprint;
  early_blocks_ = lets_next_start ? footprint.blocks : 0;
  everyone().made_clusters |= coming_.needs > 1;
  const auto is_ahead = [&](const Last& calls) {
    return calls.made && calls.stream == stream && calls.capture == capture;
  };
  unsigned blocks = coming_.blocks + (is_ahead(own) ? own.early_blocks : 0);
  std::vector<Footprint> together = {coming_};
  std::vector<Order*> running;
  for (Order* other : others()) {
    Last& latest = other->last(capture);
    if (!latest.made || latest.capture != capture) continue;
    if (is_ahead(latest)) {
      blocks = std::max(blocks, coming_.blocks + latest.early_blocks);
      latest.since[this] = {};
    } else {
      together.push_back(latest.since[this]);
      running.push_back(other);
    }
  }
  const bool may_start_early = blocks < multiprocessors_;
  if (all_fit(together, multiprocessors_)) return may_start_early;
  for (Order* other : running) {
    Last& latest = other->last(capture);
    wait_for(latest, stream);
    latest.since[this] = {};
    other->behind_.insert(number_);
  }
  return may_start_early;
}

void Order::after(CUstream stream, uint64_t capture) {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  Last& own = last(capture);
  if (own.capture != capture || !own.made) own.since.clear();
  own.stream = stream;
  own.capture = capture;
  own.made = true;
  own.behind = many_streams_;
  own.early_blocks = early_blocks_;
  behind_.clear();
  if (const std::vector<Order*> others = this->others(); !others.empty()) {
    for (const Order* other : others) own.since[other] = own.since[other].either(coming_);
    const bool awaited = others.size() > 1 || everyone().made_clusters;
    const bool is_large = coming_.blocks > multiprocessors_ / kSmallShare;
    own.behind |= capture != 0 || (awaited && is_large);
  }
  if (own.behind) check(cuda().cuEventRecord(own.event, stream), "cuEventRecord");
}

std::string Order::waiting() const {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  if (behind_.empty()) return "";
  std::string numbers;
  for (const int number : behind_) numbers += text(numbers.empty() ? "" : ", ", number);
  return text("communicator ", number_, " of this process; calls of communicator ", numbers,
              " wait for it, because they do not fit on the GPU together");
}

}  // namespace commlib::nccl
