// A radix tree over token ids that says which cache slots hold a prefix, and which to free.
//
// Layout: nodes in an arena by 32-bit number | keys and slots of a node in one allocation | one
// table that finds children | one heap that orders the unlocked leaves. A node stands for the END
// of its path: a split makes a parent in front of it, so handles stay good.
// Cost: 8 bytes for each token, below 200 for each node. Nothing here is safe for two threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "radix/events.h"
#include "radix/heap.h"
#include "radix/spaces.h"
#include "radix/table.h"

namespace commlib::radix {

enum class Policy : uint8_t { lru, lfu, fifo, mru, filo, priority, slru };
constexpr int kPolicies = 7;

struct Options {
  uint32_t page_size = 1;
  Policy policy = Policy::lru;
  bool tail = false;      // evict pages from the end of a leaf, not whole leaves
  bool events = false;    // record what is stored and removed
  int64_t capacity = -1;  // tokens the tree may hold; -1: no bound
};

// A sequence of ids or slots, int32 or int64.
struct Sequence {
  const void* data;
  bool wide;
  size_t count;
};

struct Node {
  int32_t* tokens = nullptr;  // `room` keys, then `room` slots; null: the root, or not in use
  std::unique_ptr<Digest[]> digests;  // of each page, only with events
  int64_t priority = 0;
  uint64_t last_access = 0;
  uint64_t creation = 0;
  uint32_t length = 0;
  uint32_t room = 0;
  NodeId parent = 0;
  uint32_t children = 0;
  uint32_t generation = 0;
  uint32_t hash = 0;
  uint32_t space = 0;
  uint32_t lock_ref = 0;      // locks here and below
  uint32_t handle_locks = 0;  // locks of handles to this very node
  uint32_t hits = 0;          // insert walks that passed

  const int32_t* keys() const { return tokens; }
  int32_t* keys() { return tokens; }
  const int32_t* slots() const { return tokens + room; }
  int32_t* slots() { return tokens + room; }
};

struct Stats {
  uint64_t matches = 0, requested_tokens = 0, hit_tokens = 0;
  uint64_t inserts = 0, inserted_tokens = 0;
  uint64_t evicted_leaves = 0, evicted_tokens = 0, splits = 0;
};

using Handle = uint64_t;  // node | generation << 32, never above 2^63 - 1

class Tree {
 public:
  static constexpr NodeId kRoot = 0;

  explicit Tree(const Options& options);
  ~Tree();
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  struct Match {
    size_t length;
    Handle handle;
  };
  // The longest prefix in whole pages; splits the node in which it ends. `touch` refreshes its
  // path. The slots are those of copy_slots() until the next call.
  Match match(const Sequence& ids, const Name& space, bool touch);
  void copy_slots(int32_t* out) const;
  void copy_slots(int64_t* out) const;
  // The path of a handle, for copy_slots(); returns its length.
  size_t follow(Handle handle);
  // What all nodes hold.
  std::vector<int32_t> slots() const;
  // Only the length: changes nothing.
  size_t peek(const Sequence& ids, const Name& space);

  struct Inserted {
    size_t existing;
    size_t length;
    Handle handle;
  };
  // Adds what is not there yet, and evicts first when that would pass the capacity: freed(). Nodes
  // within the first `counted` tokens count no hit: an earlier insert of the request did.
  Inserted insert(const Sequence& ids, const Sequence& slots, const Name& space, int64_t priority,
                  size_t counted = 0);

  void lock(Handle handle);
  void unlock(Handle handle);
  // Where fewer tokens are evictable: fails, or with `at_most` evicts those.
  void evict(int64_t tokens, bool at_most);
  void reset(bool force);
  // Slots that the last insert(), evict() or reset() gave back, in the order of eviction.
  const std::vector<int32_t>& freed() const { return freed_; }

  size_t evictable() const { return evictable_; }
  size_t locked() const { return locked_; }
  const Options& options() const { return options_; }
  const Stats& stats() const { return stats_; }
  size_t nodes() const { return count_ - free_.size(); }
  size_t leaves() const;
  size_t bytes() const;
  uint64_t locks() const { return held_; }

  Events* events() { return events_.get(); }

  // Recomputes every invariant from the nodes; fails with the first that does not hold.
  void check() const;
  // The tree as text, a line for each node.
  std::string listing() const;

 private:
  static constexpr uint32_t kChunk = 1024;  // nodes of one allocation of the arena
  friend class Checker;

  struct Step {
    NodeId node;
    uint32_t length;  // of the node, that the walk took
  };

  Node& at(NodeId id) { return arena_[id / kChunk][id % kChunk]; }
  const Node& at(NodeId id) const { return arena_[id / kChunk][id % kChunk]; }
  bool alive(NodeId id) const { return id < count_ && (id == kRoot || at(id).tokens); }
  Handle handle_of(NodeId id) const { return Handle{at(id).generation} << 32 | id; }
  NodeId resolve(Handle handle) const;

  // tree.cc: walking
  template <class Id>
  uint32_t hash_page(NodeId parent, uint32_t space, const Id* page) const {
    constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
    uint64_t hash = ((seed_ + parent) * kMix) ^ space;
    const uint32_t odd = options_.page_size % 2;
    if (odd) hash = (hash ^ static_cast<uint32_t>(page[0])) * kMix;
    for (uint32_t i = odd; i < options_.page_size; i += 2) {  // each step waits for the one before
      hash ^= static_cast<uint32_t>(page[i]) | uint64_t{static_cast<uint32_t>(page[i + 1])} << 32;
      hash *= kMix;
      hash ^= hash >> 32;
    }
    return static_cast<uint32_t>(hash * kMix >> 32);
  }
  template <class Id>
  Step child_of(NodeId parent, uint32_t space, const Id* ids, size_t left) const;
  template <class Id>
  size_t walk_ids(const Id* ids, size_t count, uint32_t space);
  size_t walk(const Sequence& ids, const Name& space);
  NodeId end_of_path();
  template <class Slot>
  void copy_path(Slot* out) const;

  // nodes.cc: nodes come and change
  static size_t bytes_of(uint32_t room) {
    constexpr size_t kMallocBytes = 16;  // what malloc adds to an allocation
    return room ? size_t{room} * 8 + kMallocBytes : 0;
  }
  NodeId take_node(size_t tokens);
  void give_node(NodeId id);
  void split(NodeId id, uint32_t length);
  void keep(Node& node, uint32_t from, uint32_t count);
  NodeId add_leaf(NodeId parent, const Sequence& ids, const Sequence& slots, size_t from);
  void attach(NodeId id);
  void reorder(NodeId id);
  EvictionKey key_of(const Node& node) const;
  void hold(NodeId id);
  void release(NodeId id);
  void digest(NodeId id);
  void fresh_generation(NodeId id);
  // evict.cc: nodes go
  void evict_until(size_t tokens);
  void remove_leaf(NodeId id);
  void trim_leaf(NodeId id, uint32_t tokens);
  void forget_pages(const Node& node, uint32_t first_token);
  void make_room(size_t fresh, NodeId keep);
  void can_make_room(size_t fresh) const;

  Options options_;
  std::vector<std::unique_ptr<Node[]>> arena_;
  std::vector<NodeId> free_;
  uint32_t count_ = 0;  // nodes ever taken
  uint32_t first_generation_;
  uint64_t seed_;
  uint64_t clock_ = 0;
  size_t evictable_ = 0, locked_ = 0;
  uint64_t held_ = 0;
  size_t token_bytes_ = 0;
  Table table_;
  Heap heap_;
  Spaces spaces_;
  std::unique_ptr<Events> events_;
  Stats stats_;
  std::vector<Step> path_;
  std::vector<int32_t> freed_;
};

}  // namespace commlib::radix
