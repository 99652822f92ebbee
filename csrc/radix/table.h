// Children by (parent, namespace, first page): one open-addressing table of hashes for all nodes.
// The tree compares the page itself; a hash only says where to look.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "radix/heap.h"

namespace commlib::radix {

class Table {
 public:
  static constexpr NodeId kFree = UINT32_MAX;

  size_t size() const { return used_; }
  size_t bytes() const { return cells_.capacity() * sizeof(Cell); }

  // Calls accept(node) for every node stored under `hash`, until one is accepted.
  template <class Accept>
  NodeId find(uint32_t hash, const Accept& accept) const {
    for (size_t at = hash & mask_; cells_[at].node != kFree; at = (at + 1) & mask_) {
      if (cells_[at].hash == hash && accept(cells_[at].node)) return cells_[at].node;
    }
    return kFree;
  }

  // Makes room for one more: after this insert() cannot fail.
  void reserve() {
    if (used_ * 2 >= cells_.size()) rehash(cells_.size() * 2);
  }

  void insert(uint32_t hash, NodeId node) {
    reserve();
    place(hash, node);
    ++used_;
  }

  // Gives the place of one node to another with the same page.
  void replace(uint32_t hash, NodeId node, NodeId by) { cells_[place_of(hash, node)].node = by; }

  // Closes the gap by moving back what was pushed past it.
  void erase(uint32_t hash, NodeId node) {
    size_t gap = place_of(hash, node);
    for (size_t at = (gap + 1) & mask_; cells_[at].node != kFree; at = (at + 1) & mask_) {
      const size_t home = cells_[at].hash & mask_;
      if (((at - home) & mask_) < ((at - gap) & mask_)) continue;
      cells_[gap] = cells_[at];
      gap = at;
    }
    cells_[gap].node = kFree;
    --used_;
  }

  void clear() {
    cells_.assign(kMinCells, Cell{});
    mask_ = kMinCells - 1;
    used_ = 0;
  }

 private:
  static constexpr size_t kMinCells = 64;

  struct Cell {
    uint32_t hash = 0;
    NodeId node = kFree;
  };

  size_t place_of(uint32_t hash, NodeId node) const {
    size_t at = hash & mask_;
    while (cells_[at].node != node) at = (at + 1) & mask_;
    return at;
  }

  void place(uint32_t hash, NodeId node) {
    size_t at = hash & mask_;
    while (cells_[at].node != kFree) at = (at + 1) & mask_;
    cells_[at] = {hash, node};
  }

  void rehash(size_t cells) {
    std::vector<Cell> old(cells);
    old.swap(cells_);
    mask_ = cells - 1;
    for (const Cell& cell : old) {
      if (cell.node != kFree) place(cell.hash, cell.node);
    }
  }

  std::vector<Cell> cells_ = std::vector<Cell>(kMinCells);
  size_t mask_ = kMinCells - 1;
  size_t used_ = 0;
};

}  // namespace commlib::radix
