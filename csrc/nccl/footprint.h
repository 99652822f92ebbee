// How much of a GPU kernels hold while they run, and whether all that run find their places.
//
// Kernels whose blocks wait for peers may run side by side only where each of them finds a place
// for all its blocks, wherever those of the others lie. It must be certain: ranks look at different
// times, so one may put in order what another runs side by side. If the second one's kernels then
// keep each other out, nobody goes on.
#pragma once

#include <algorithm>

namespace commlib::nccl {

// Their blocks, the largest part of a multiprocessor that what has to find a place together needs,
// the multiprocessors that all blocks fill together, and those that have to be free besides.
struct Footprint {
  unsigned blocks = 0;
  double fraction = 0;
  double filled = 0;
  unsigned spare = 0;

  // Of whichever of both runs.
  Footprint either(const Footprint& other) const {
    return {std::max(blocks, other.blocks), std::max(fraction, other.fraction),
            std::max(filled, other.filled), std::max(spare, other.spare)};
  }
  // Of both at once.
  Footprint beside(const Footprint& other) const {
    return {blocks + other.blocks, std::max(fraction, other.fraction), filled + other.filled,
            std::max(spare, other.spare)};
  }
  // Whether every block finds a place: either no two need to share a multiprocessor, or some
  // multiprocessor always has room for one block more.
  bool fits(unsigned multiprocessors) const {
    return blocks + spare <= multiprocessors || filled <= multiprocessors * (1 - fraction);
  }
  bool exceeds(const Footprint& other) const {
    return blocks > other.blocks || fraction > other.fraction || filled > other.filled ||
           spare > other.spare;
  }
};

// Of a kernel of ours, a block of which needs such a fraction of a multiprocessor. The blocks of a
// cluster find their places together, and one multiprocessor has room for all of them; but each may
// lie on another one.
inline Footprint footprint_of_kernel(unsigned blocks, unsigned cluster_blocks, double fraction) {
  return {blocks, fraction * cluster_blocks, blocks * fraction, 0};
}

// Of one of NCCL's, which takes whole multiprocessors: at most so many blocks between GPUs of one
// host. From Hopper on they come in clusters, whose blocks need as many free multiprocessors in one
// part of the GPU: with so many free in all, one of its parts has them.
inline Footprint footprint_of_vendor() {
  constexpr unsigned kBlocks = 32, kCluster = 4, kParts = 8;
  return {kBlocks, 1, kBlocks, kParts * (kCluster - 1)};
}

}  // namespace commlib::nccl
