// NCCL's own calls have no deadline: two threads of a Group keep it here.
//
// One never asks the driver, since a call that finds the queue full waits inside with a lock of the
// driver's; it lets everything go when a peer dies or a call is stuck. The other follows calls that
// were made, by events behind them. Neither touches a stream of the caller's, which may be captured
// at any moment. Calls in a graph are not followed.
#pragma once

#include <atomic>
#include <mutex>

#include "commlib/call.h"
#include "nccl/fault.h"
#include "nccl/nccl_api.h"

namespace commlib::nccl {

class Deadline {
 public:
  Deadline(ncclComm_t comm, int rank, double timeout_s, Fault& fault);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // Around a call, on the caller's thread. `made`: it is on the stream, and not in a graph.
  void enter(const Call& call, const char* algorithm);
  void leave(bool made, CUstream stream);

  // What each thread does at every tick; the second returns false when it ended the communicator.
  void check_entered();
  bool check_made();
  // Lets NCCL's kernels go, which wait for a flag of their own; what is queued leaves one by one.
  // It may wait for the peers, which must have been notified before.
  void revoke();
  // Whether the peers were not yet notified that the first thread has ended it; once.
  bool owes_peers() { return owes_peers_.exchange(false); }
  void close();

 private:
  void overdue();

  ncclComm_t comm_;
  const int rank_;
  const double timeout_s_;
  Fault& fault_;
  std::atomic<bool> owes_peers_{false};
  std::atomic<bool> used_{false};  // ever, captured ones included
  std::atomic<bool> revoked_{false};

  // The newest call, for its error; and when the one was entered that is being made, 0: none. It
  // may wait for a peer to connect.
  std::atomic<Op> op_{Op::barrier};
  std::atomic<size_t> bytes_{0};
  std::atomic<const char*> algorithm_{""};
  std::atomic<double> entered_{0};

  // Events behind eager calls, each recorded by the thread that made the call: the one that is
  // followed, and the one behind the newest call since.
  std::mutex mutex_;
  CUevent followed_ = nullptr;
  CUevent newest_ = nullptr;
  bool following_ = false;
  bool newer_ = false;
  double since_ = 0;
};

// The capture that a stream is part of; 0: none.
uint64_t capture_of(CUstream stream);
// Of a clock that only goes forward.
double seconds();

}  // namespace commlib::nccl
