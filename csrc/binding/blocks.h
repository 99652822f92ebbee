// The blocks of different sizes of a v-variant.
#pragma once

#include <vector>

#include "commlib/call.h"

namespace commlib::binding {

using Sizes = std::vector<int64_t>;  // elements of each rank's block

// Times 16 bytes times all ranks it still fits 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 52;

// Sizes of the ranks' blocks, in elements, as a v-variant takes them.
struct Blocks {
  Sizes of;
  size_t total = 0;
  uint64_t digest = 1469598103934665603u;  // FNV-1a

  Blocks(const Sizes& sizes, const char* name, int world) : of(sizes) {
    if (static_cast<int>(sizes.size()) != world) {
      fail("ValueError", name, " has ", counted(sizes.size(), "entry", "entries"),
           ", but the communicator has ", counted(world, "rank"));
    }
    for (int r = 0; r < world; ++r) {
      if (of[r] < 0) fail("ValueError", name, "[", r, "] is ", of[r], "; sizes are 0 or more");
      if (of[r] > kMaxElements - static_cast<int64_t>(total))
        fail("ValueError", name, " adds up to more elements than a tensor can have");
      total += static_cast<size_t>(of[r]);
      digest = (digest ^ static_cast<uint64_t>(of[r])) * 1099511628211u;
    }
  }
  // Of rows of so many elements; the rows are those of a tensor.
  void scale(int64_t row) {
    for (int64_t& size : of) size *= row;
    total *= static_cast<size_t>(row);
  }
  size_t before(int rank) const {
    size_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += static_cast<size_t>(of[r]);
    return sum;
  }
};

}  // namespace commlib::binding
