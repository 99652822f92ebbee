#include "nccl/order.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "nccl/deadline.h"

namespace commlib::nccl {
namespace {

constexpr unsigned kSmallShare = 8;  // a small kernel fills at most this part of a GPU

// The communicators of this process that have made calls.
struct Everyone {
  std::mutex mutex;
  std::vector<Order*> orders;
  int made = 0;
};
Everyone& everyone() {
  static auto* const kept = new Everyone;
  return *kept;
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
  all.orders.push_back(this);
}

void Order::leave() {
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.orders.erase(std::remove(all.orders.begin(), all.orders.end(), this), all.orders.end());
}

void Order::close() {
  leave();
  cuda().cuEventDestroy(eager_.event);
  cuda().cuEventDestroy(captured_.event);
}

bool Order::alone() const {
  const auto& orders = everyone().orders;
  return std::none_of(orders.begin(), orders.end(), [this](const Order* other) {
    return other != this && other->context_ == context_;
  });
}

Footprint Order::footprint_of(const Launch& launch) {
  if (!launch.function) return footprint_of_vendor();
  double& fraction = fractions_[{launch.function, launch.threads, launch.shared_bytes}];
  if (fraction == 0) {
    int blocks = 0;
    check(cuda().cuOccupancyMaxActiveBlocksPerMultiprocessor(
              &blocks, launch.function, static_cast<int>(launch.threads), launch.shared_bytes),
          "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    fraction = 1.0 / std::max(blocks, 1);
  }
  const Footprint once = footprint_of_kernel(launch.blocks, launch.cluster_blocks, fraction);
  return launch.lets_next_start && !is_large(once) ? once.beside(once) : once;
}

// An event is recorded behind it where there are other communicators.
bool Order::is_large(const Footprint& footprint) const {
  return footprint.filled > multiprocessors_ / kSmallShare;
}

// Whether eager calls that were large are over by now.
void Order::look(Last& calls) {
  if (!calls.large_runs || !calls.large_known || calls.capture != 0) return;
  const Relaxed relaxed;
  if (cuda().cuEventQuery(calls.event) == kCudaSuccess) calls.large_runs = false;
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
    calls.behind = calls.large_known = true;
  }
  check(cuda().cuStreamWaitEvent(stream, calls.event, 0), "cuStreamWaitEvent");
}

void Order::before(CUstream stream, uint64_t capture, const Launch& launch) {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  if (number_ == 0) join();
  Last& own = last(capture);
  if (own.made && own.stream != stream && own.capture == capture) {
    many_streams_ = true;
    wait_for(own, stream);
  }
  if (alone()) {
    coming_ = footprint_of_kernel(multiprocessors_, 1, 1);  // who comes later takes it for all
    return;
  }
  coming_ = footprint_of(launch);
  Footprint together = coming_;
  std::vector<Order*> running;
  for (Order* other : everyone().orders) {
    Last& theirs = other->last(capture);
    if (other == this || other->context_ != context_ || !theirs.made) continue;
    if (theirs.capture != capture || theirs.stream == stream) continue;
    look(theirs);
    together = together.beside(theirs.footprint());
    running.push_back(other);
  }
  if (together.fits(multiprocessors_)) return;
  for (Order* other : running) {
    wait_for(other->last(capture), stream);
    other->behind_.insert(number_);
  }
}

void Order::after(CUstream stream, uint64_t capture) {
  const std::lock_guard<std::mutex> lock(everyone().mutex);
  Last& own = last(capture);
  if (own.capture != capture || !own.made) {
    own.large_runs = false;
    own.large = own.small = Footprint();
  }
  const bool others = !alone();
  const bool large = is_large(coming_);
  if (large) {
    if (others && own.large.exceeds(coming_)) look(own);
    own.large = own.large_runs ? own.large.either(coming_) : coming_;
    own.large_runs = true;
    own.large_known = false;
    behind_.clear();
  } else {
    own.small = own.small.either(coming_);
  }
  own.stream = stream;
  own.capture = capture;
  own.made = true;
  own.behind = many_streams_ || (others && (large || capture != 0));
  if (!own.behind) return;
  check(cuda().cuEventRecord(own.event, stream), "cuEventRecord");
  own.large_known = true;
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
