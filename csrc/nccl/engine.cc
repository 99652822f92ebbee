#include "nccl/engine.h"

#include <algorithm>
#include <ctime>

#include "nccl/deadline.h"

namespace commlib::nccl {
namespace {

void start(const Copy& copy, CUstream stream) {
  check(
      cuda().cuMemcpyAsync(device_pointer(copy.to), device_pointer(copy.from), copy.bytes, stream),
      "cuMemcpyAsync");
}

CUevent made() {
  CUevent event = nullptr;
  check(cuda().cuEventCreate(&event, kEventDisableTiming), "cuEventCreate");
  return event;
}

}  // namespace

void Engine::copy(const Copies& copies, CUstream stream, uint64_t capture) {
  if (copies.count == 0) return;
  Fork& fork = fork_of(capture);
  const size_t branches = copies.count - 1;
  grow(fork, branches);
  if (branches > 0) check(cuda().cuEventRecord(fork.begun, stream), "cuEventRecord");
  for (size_t i = 0; i < branches; ++i) {
    const Branch& branch = fork.branches[i];
    check(cuda().cuStreamWaitEvent(branch.stream, fork.begun, 0), "cuStreamWaitEvent");
    start(copies.of[i + 1], branch.stream);
    check(cuda().cuEventRecord(branch.done, branch.stream), "cuEventRecord");
  }
  start(copies.of[0], stream);
  for (size_t i = 0; i < branches; ++i)
    check(cuda().cuStreamWaitEvent(stream, fork.branches[i].done, 0), "cuStreamWaitEvent");
  if (capture != 0) return;
  if (!last_) last_ = made();
  check(cuda().cuEventRecord(last_, stream), "cuEventRecord");
}

bool Engine::captured(const Fork& fork) {
  return std::any_of(fork.branches.begin(), fork.branches.end(), [](const Branch& branch) {
    CUcaptureStatus status = kCaptureNone;
    check(cuda().cuStreamIsCapturing(branch.stream, &status), "cuStreamIsCapturing");
    return status != kCaptureNone;
  });
}

Engine::Fork& Engine::fork_of(uint64_t capture) {
  if (capture == 0) return eager_;
  auto match = std::find_if(captured_.begin(), captured_.end(),
                            [&](const Fork& fork) { return fork.capture == capture; });
  if (match == captured_.end())
    match = std::find_if(captured_.begin(), captured_.end(),
                         [](const Fork& fork) { return !captured(fork); });
  if (match == captured_.end()) match = captured_.emplace(captured_.end());
  match->capture = capture;
  return *match;
}

void Engine::grow(Fork& fork, size_t branches) {
  const Relaxed relaxed;
  if (!fork.begun) fork.begun = made();
  while (fork.branches.size() < branches) {
    CUstream stream = nullptr;
    check(cuda().cuStreamCreate(&stream, kStreamNonBlocking), "cuStreamCreate");
    fork.branches.push_back({stream, made()});
  }
}

void Engine::settle(double wait_s) const {
  const timespec nap = {0, 100'000};
  const Relaxed relaxed;
  const double start = seconds();
  while (last_ && cuda().cuEventQuery(last_) == kCudaErrorNotReady && seconds() - start < wait_s)
    nanosleep(&nap, nullptr);
}

void Engine::close() {
  captured_.push_back(eager_);
  for (const Fork& fork : captured_) {
    for (const Branch& branch : fork.branches) {
      cuda().cuStreamDestroy(branch.stream);
      cuda().cuEventDestroy(branch.done);
    }
    if (fork.begun) cuda().cuEventDestroy(fork.begun);
  }
  if (last_) cuda().cuEventDestroy(last_);
}

}  // namespace commlib::nccl
