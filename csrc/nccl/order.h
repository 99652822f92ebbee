// The order of kernels on one GPU, over streams and communicators.
//
// Calls of one communicator run one after the other. Kernels of different communicators run side by
// side where they fit on the GPU together; where they do not, they run in the order of the host's
// calls: blocks of one that wait for a peer would otherwise keep out those of another, which that
// peer waits for. In a graph this holds inside one capture; between a graph and other calls the
// order is the caller's, as for any memory they share.
//
// Every event is recorded on the stream of the call that it follows, inside that call.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "cuda/api.h"
#include "nccl/footprint.h"

namespace commlib::nccl {

// A kernel as it is about to be launched; without a function, one of NCCL's, of which the library
// tells nothing.
struct Launch {
  CUfunction function = nullptr;
  unsigned blocks = 0;
  unsigned threads = 0;
  unsigned shared_bytes = 0;
  bool lets_next_start = false;  // so that two of a stream hold their places, without an event
  unsigned cluster_blocks = 1;   // which find their places together
};

// Where one communicator stands. Made and used by the threads that make calls.
class Order {
 public:
  // On the current context.
  Order();
  ~Order() { leave(); }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  // Around the launch of a call: `capture` is that of `stream`, 0: none.
  void before(CUstream stream, uint64_t capture, const Launch& launch);
  void after(CUstream stream, uint64_t capture);
  // Frees the events, once nothing runs any more.
  void close();

  // For errors: this communicator, and those whose calls wait for its last one; empty: none do.
  std::string waiting() const;

 private:
  // The calls of one kind so far, eager or of one capture. An event is recorded behind each large
  // one; behind a small one only when somebody has to wait for it, since a record keeps the next
  // kernel from starting early.
  struct Last {
    CUstream stream = nullptr;  // of the newest
    uint64_t capture = 0;
    bool made = false;
    CUevent event = nullptr;
    bool behind = false;       // the event is behind the newest
    bool large_runs = false;   // one may
    bool large_known = false;  // the event is behind the newest large one
    Footprint large, small;    // of those that may still run
    Footprint footprint() const { return large_runs ? large.either(small) : small; }
  };
  Last& last(uint64_t capture) { return capture ? captured_ : eager_; }
  void join();
  void leave();
  bool alone() const;
  Footprint footprint_of(const Launch& launch);
  bool is_large(const Footprint& footprint) const;
  static void look(Last& calls);
  static void wait_for(Last& calls, CUstream stream);

  CUcontext context_ = nullptr;
  unsigned multiprocessors_ = 0;
  int number_ = 0;  // in this process, from 1
  Last eager_, captured_;
  bool many_streams_ = false;
  Footprint coming_;  // of the call being made
  std::map<std::tuple<CUfunction, unsigned, unsigned>, double> fractions_;
  std::set<int> behind_;  // numbers of the communicators whose calls wait for this one's
};

}  // namespace commlib::nccl
