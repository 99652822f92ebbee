// How a communicator ends: a kernel that gave up, a peer that died, an abort. The first reason
// stays; every later call raises it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "commlib/check.h"
#include "commlib/job.h"
#include "cuda/api.h"
#include "record/record.h"

namespace commlib::nccl {

class Fault {
 public:
  // `describe` turns Job::what into words; `waiting` tells of other communicators' calls that wait
  // for this one's.
  Fault(int rank, int world, double timeout_s, std::function<std::string(uint64_t)> describe,
        std::function<std::string()> waiting);
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

  // The host memory that kernels write to, as they address it.
  Report* open();

  // Costs two loads while all is well.
  void alive() {
    if (__builtin_expect(ended_.load(std::memory_order_acquire) || reported(), 0)) raise();
  }
  bool over() const { return ended_.load(std::memory_order_acquire) || reported(); }
  // Ends it, unless it has ended; kernels that wait leave. Callable from any thread.
  void end(const char* kind, const std::string& text);
  // The peer for which a kernel of another compiler waited in vain; -1: none.
  int missed() const {
    return report_ ? static_cast<int>(static_cast<volatile Report*>(report_)->gave_up) - 1 : -1;
  }
  // Says for readers of the record what has ended it, if a kernel has.
  void tell();
  // A peer's process is gone.
  void lost(int peer);
  // Where Control::ended is to be copied to; and what to make of it, once the copy is there.
  u64* ended_copy() const { return &report_->ended; }
  // The same for Control::progress.
  Progress* progress_copy() const { return &report_->progress; }
  // Who keeps the end for readers, and knows what the ranks are in.
  void set_record(record::Record* record) { record_ = record; }
  void look_at_copy();
  // No peer is watched or notified any more.
  void close() { closed_ = true; }
  // Frees the host memory, which waits for the GPU: only once nothing runs there any more.
  // Otherwise it stays until the process ends.
  void release();

 private:
  bool reported() const { return report_ && static_cast<volatile Report*>(report_)->kind != 0; }
  [[noreturn]] void raise();
  void explain();
  std::string reason_of(const Report& report, const char** kind) const;
  std::string reason_of_peer(uint64_t ended, const char** kind) const;

  const int rank_;
  const double timeout_s_;
  const std::function<std::string(uint64_t)> describe_;
  const std::function<std::string()> waiting_;
  Report* report_ = nullptr;
  record::Record* record_ = nullptr;
  bool explained_ = false;
  std::atomic<bool> ended_{false};
  std::atomic<bool> closed_{false};
  std::mutex mutex_;
  std::string kind_, text_;
  std::vector<bool> dead_;
};

}  // namespace commlib::nccl
