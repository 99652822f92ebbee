// Which kernels that wait for peers may run side by side on a GPU, whichever it starts first.
//
// A block of ours only waits for the block of the same number on each peer, and a GPU starts the
// blocks of a grid in the order of their numbers. So a kernel makes progress as long as its first
// unfinished block is on every GPU. Two communicators cannot keep each other out, since
//
//   - a grid leaves at least one multiprocessor free (grid_limit), which has room for any block. A
//     busy one may have none, however little runs there: it divides its memory between cache and
//     shared memory as its first block wants it;
//   - all communicators of a process but the first leave so many free that the program's kernels
//     run, too: those for which the first communicator's next kernel waits on its stream, or behind
//     which it has to start. So the kernels of the first communicator always end, and then the
//     others.
//
// Blocks of a cluster, and those of NCCL, which come in clusters of whole multiprocessors, need
// several places at once: next to a large kernel they wait until it has ended, which it does
// without them. Calls of more than two communicators, or of these kinds, are put in the order of
// the host's calls where they may keep each other out (nccl/order.h).
#pragma once

#include <algorithm>
#include <vector>

namespace commlib::nccl {

// So many free multiprocessors have four in one part of the GPU, where a cluster has to lie.
constexpr unsigned kParts = 8, kCluster = 4, kClusterNeeds = kParts * (kCluster - 1) + 1;

// The largest grid, in blocks; `first`: of the first communicator of its process.
inline unsigned grid_limit(unsigned multiprocessors, bool first) {
  const unsigned free = first ? 1 : kClusterNeeds;
  return std::max(multiprocessors, free + 1) - free;
}

// What the kernels of one communicator take: at most so many blocks; and the free multiprocessors
// that are sure to have room for the first of them.
struct Footprint {
  unsigned blocks = 0;
  unsigned needs = 0;

  // Of whichever of both runs.
  Footprint either(const Footprint& other) const {
    return {std::max(blocks, other.blocks), std::max(needs, other.needs)};
  }
};

inline Footprint footprint_of_kernel(unsigned blocks, unsigned cluster_blocks) {
  return {blocks, cluster_blocks > 1 ? kClusterNeeds : 1};
}
// Of a kernel of NCCL's between GPUs of one host.
inline Footprint footprint_of_vendor() {
  constexpr unsigned kBlocks = 32;
  return {kBlocks, kClusterNeeds};
}

// Whether each of them is sure of a place, wherever the others lie, and kernels of the program
// next to all but the largest.
inline bool all_fit(const std::vector<Footprint>& kernels, unsigned multiprocessors) {
  unsigned blocks = 0, largest = 0;
  for (const Footprint& kernel : kernels) {
    blocks += kernel.blocks;
    largest = std::max(largest, kernel.blocks);
  }
  const bool all = std::all_of(kernels.begin(), kernels.end(), [&](const Footprint& kernel) {
    return blocks - kernel.blocks + kernel.needs <= multiprocessors;
  });
  return all && blocks - largest + kClusterNeeds <= multiprocessors;
}

}  // namespace commlib::nccl
