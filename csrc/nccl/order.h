// The order of kernels on one GPU, over streams and communicators.
//
// Calls of one communicator run one after the other. Those of any two communicators run side by
// side; those of more, or of NCCL's, do so where each of them is sure of a place (footprint.h), and
// else in the order of the host's calls. In a graph this holds inside one capture.
//
// Every event is recorded on the stream of the call that it follows, inside that call.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cuda/api.h"
#include "nccl/footprint.h"

namespace commlib::nccl {

// Where one communicator stands. Made and used by the threads that make calls.
class Order {
 public:
  // On the current context.
  Order();
  ~Order() { leave(); }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  // Around the launch of a call: `capture` is that of `stream`, 0: none. Returns whether it may
  // start while the kernel ahead on its stream runs. `lets_next_start`: as that one did at its
  // begin, when its peers may be elsewhere: both leave a multiprocessor free.
  bool before(CUstream stream, uint64_t capture, const Footprint& footprint, bool lets_next_start);
  void after(CUstream stream, uint64_t capture);
  // Whether other communicators have made calls in this context.
  bool has_others() const;
  // Frees the events, once nothing runs any more.
  void close();

  // For errors: this communicator, and those whose calls wait for its last one; empty: none do.
  std::string waiting() const;

 private:
  // The calls of one kind so far, eager or of one capture. Which of them others wait for follows
  // from the calls that the program has made, not from what the GPU has done by then: ranks that
  // decided differently could wait for each other. An event is recorded behind each large call that
  // others may have to wait for; behind a small one only when somebody has to, since a record keeps
  // the next kernel from starting early.
  struct Last {
    CUstream stream = nullptr;  // of the newest
    uint64_t capture = 0;
    bool made = false;
    CUevent event = nullptr;
    bool behind = false;        // the event is behind the newest
    unsigned early_blocks = 0;  // of the newest, if it lets the next kernel start at its begin
    // Of those that each other communicator has not been put behind yet.
    std::map<const Order*, Footprint> since;
  };
  Last& last(uint64_t capture) { return capture ? captured_ : eager_; }
  void join();
  void leave();
  std::vector<Order*> others() const;  // in this context
  static void wait_for(Last& calls, CUstream stream);

  CUcontext context_ = nullptr;
  unsigned multiprocessors_ = 0;
  int number_ = 0;  // in this process, from 1
  Last eager_, captured_;
  bool many_streams_ = false;
  Footprint coming_;  // of the call being made
  unsigned early_blocks_ = 0;
  std::set<int> behind_;  // numbers of the communicators whose calls wait for this one's
};

}  // namespace commlib::nccl
