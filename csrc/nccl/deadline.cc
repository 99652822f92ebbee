#include "nccl/deadline.h"

#include <ctime>
#include <utility>

namespace commlib::nccl {

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

uint64_t capture_of(CUstream stream) {
  CUcaptureStatus status = kCaptureNone;
  uint64_t id = 0;
  const CUresult result = cuda().cuStreamGetCaptureInfo(stream, &status, &id);
  return result == kCudaSuccess && status == kCaptureActive ? id : 0;
}

Deadline::Deadline(ncclComm_t comm, int rank, double timeout_s, Fault& fault)
    : comm_(comm), rank_(rank), timeout_s_(timeout_s), fault_(fault) {
  check(cuda().cuEventCreate(&followed_, kEventDisableTiming), "cuEventCreate");
  check(cuda().cuEventCreate(&newest_, kEventDisableTiming), "cuEventCreate");
}

void Deadline::enter(const Call& call, const char* algorithm) {
  op_.store(call.op, std::memory_order_relaxed);
  bytes_.store(call.bytes(), std::memory_order_relaxed);
  algorithm_.store(algorithm, std::memory_order_relaxed);
  used_.store(true, std::memory_order_relaxed);
  entered_.store(seconds(), std::memory_order_release);
}

void Deadline::leave(bool made, CUstream stream) {
  if (made) {
    const std::lock_guard<std::mutex> lock(mutex_);
    check(cuda().cuEventRecord(following_ ? newest_ : followed_, stream), "cuEventRecord");
    newer_ = following_;
    if (!following_) since_ = seconds();
    following_ = true;
  }
  entered_.store(0, std::memory_order_release);
}

void Deadline::check_entered() {
  if (fault_.over()) return revoke();
  const double entered = entered_.load(std::memory_order_acquire);
  if (entered == 0 || seconds() - entered < timeout_s_) return;
  owes_peers_ = true;
  overdue();
  revoke();
}

bool Deadline::check_made() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (following_ && cuda().cuEventQuery(followed_) != kCudaErrorNotReady) {
    std::swap(followed_, newest_);
    following_ = newer_;
    newer_ = false;
    since_ = seconds();
  }
  if (!following_ || seconds() - since_ < timeout_s_) return true;
  overdue();
  return false;
}

void Deadline::overdue() {
  fault_.end("CommTimeout",
             text("rank ", rank_, ": ", name_of(op_.load()), " of ", counted(bytes_.load(), "byte"),
                  " by ", algorithm_.load(), " did not finish within ", timeout_s_,
                  " s; some rank did not make the call"));
}

void Deadline::revoke() {
  if (!used_ || revoked_.exchange(true)) return;
  if (nccl().ncclCommRevoke) nccl().ncclCommRevoke(comm_, 0);
}

void Deadline::close() {
  cuda().cuEventDestroy(followed_);
  cuda().cuEventDestroy(newest_);
}

}  // namespace commlib::nccl
