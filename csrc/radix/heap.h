// The unlocked leaves in order of eviction: a heap of 4 children per entry in which every node
// knows its place, so that any change of a key costs O(log n) and the order is exact under every
// policy, also those whose keys decrease.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace commlib::radix {

using NodeId = uint32_t;

// Smaller is evicted first; equal keys fall to the older access, then to the lower node.
struct EvictionKey {
  uint64_t first;
  uint64_t last_access;
};

class Heap {
 public:
  static constexpr uint32_t kOutside = UINT32_MAX;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  NodeId top() const { return entries_[0].node; }
  bool holds(NodeId node) const { return node < place_.size() && place_[node] != kOutside; }
  size_t bytes() const {
    return entries_.capacity() * sizeof(Entry) + place_.capacity() * sizeof(uint32_t);
  }

  // Puts a node in, or moves it to where its key belongs.
  void set(NodeId node, EvictionKey key) {
    if (node >= place_.size()) place_.resize(node + 1, kOutside);
    uint32_t at = place_[node];
    if (at == kOutside) {
      at = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
    }
    settle(at, {key.first, key.last_access, node});
  }

  void remove(NodeId node) {
    const uint32_t at = place_[node];
    place_[node] = kOutside;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (at < entries_.size()) settle(at, last);
  }

  void clear() {
    entries_.clear();
    place_.clear();
  }

  // The key a node was put in with, and whether the order holds around it.
  EvictionKey key_of(NodeId node) const {
    const Entry& entry = entries_[place_[node]];
    return {entry.first, entry.last_access};
  }
  bool ordered(NodeId node) const {
    const uint32_t at = place_[node];
    return entries_[at].node == node &&
           (at == 0 || !before(entries_[at], entries_[(at - 1) / kChildren]));
  }

 private:
  static constexpr uint32_t kChildren = 4;

  struct Entry {
    uint64_t first;
    uint64_t last_access;
    NodeId node;
  };

  static bool before(const Entry& a, const Entry& b) {
    if (a.first != b.first) return a.first < b.first;
    if (a.last_access != b.last_access) return a.last_access < b.last_access;
    return a.node < b.node;
  }

  void put(uint32_t at, const Entry& entry) {
    entries_[at] = entry;
    place_[entry.node] = at;
  }

  // Moves the hole at `at` up or down until `entry` fits.
  void settle(uint32_t at, const Entry& entry) {
    while (at > 0 && before(entry, entries_[(at - 1) / kChildren])) {
      put(at, entries_[(at - 1) / kChildren]);
      at = (at - 1) / kChildren;
    }
    for (;;) {
      const size_t begin = size_t{at} * kChildren + 1;
      if (begin >= entries_.size()) break;
      const size_t end = begin + kChildren < entries_.size() ? begin + kChildren : entries_.size();
      size_t first = begin;
      for (size_t i = begin + 1; i < end; ++i) {
        if (before(entries_[i], entries_[first])) first = i;
      }
      if (!before(entries_[first], entry)) break;
      put(at, entries_[first]);
      at = static_cast<uint32_t>(first);
    }
    put(at, entry);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> place_;  // by node
};

}  // namespace commlib::radix
