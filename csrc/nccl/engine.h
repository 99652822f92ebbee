// Copies by the GPU's copy engines, which take no multiprocessors; side by side where there are
// several.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <vector>

#include "commlib/job.h"
#include "cuda/api.h"

namespace commlib::nccl {

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  size_t bytes;
};
// At most one from each rank.
struct Copies {
  std::array<Copy, kMaxPeers> of;
  size_t count = 0;

  void add(const Copy& copy) {
    if (copy.bytes > 0 && copy.to != copy.from) of[count++] = copy;
  }
};

class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // They begin once what is ahead on the stream is over, and what comes next on it begins once they
  // are; `capture` is that of `stream`, 0: none.
  void copy(const Copies& copies, CUstream stream, uint64_t capture);
  // Waits for those of eager calls, `wait_s` at most.
  void settle(double wait_s) const;
  // Once nothing runs any more.
  void close();

 private:
  // Streams next to the call's. Those that took part in a capture belong to it until it ends.
  struct Branch {
    CUstream stream;
    CUevent done;
  };
  struct Fork {
    uint64_t capture = 0;
    CUevent begun = nullptr;
    std::vector<Branch> branches;
  };
  Fork& fork_of(uint64_t capture);
  static bool captured(const Fork& fork);
  static void grow(Fork& fork, size_t branches);

  Fork eager_;
  std::list<Fork> captured_;
  CUevent last_ = nullptr;  // behind the copies of the last eager call
};

}  // namespace commlib::nccl
