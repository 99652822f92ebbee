// Nodes come and change: leaves, splits, locks. Every change keeps the table, the heap and both
// counters in step.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "radix/tree.h"

namespace commlib::radix {
namespace {

// Large nodes start at a cache line, as torch's tensors do: compares then read both in step.
int32_t* allocated(size_t tokens) {
  constexpr size_t kLine = 64, kLargeBytes = 4096;
  const size_t bytes = tokens * 2 * sizeof(int32_t);
  void* memory = bytes < kLargeBytes
                     ? std::malloc(bytes)
                     : std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
  if (!memory) throw std::bad_alloc();
  return static_cast<int32_t*>(memory);
}

void copy_numbers(const Sequence& from, size_t first, int32_t* to, size_t count) {
  if (from.wide) {
    const auto* numbers = static_cast<const int64_t*>(from.data) + first;
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<int32_t>(numbers[i]);
  } else {
    std::memcpy(to, static_cast<const int32_t*>(from.data) + first, count * sizeof(int32_t));
  }
}

}  // namespace

// Gives a node memory for the tokens in [from, from + count) of what it has.
void Tree::keep(Node& node, uint32_t from, uint32_t count) {
  int32_t* memory = allocated(count);
  std::memcpy(memory, node.keys() + from, count * sizeof(int32_t));
  std::memcpy(memory + count, node.slots() + from, count * sizeof(int32_t));
  token_bytes_ += bytes_of(count) - bytes_of(node.room);
  std::free(node.tokens);
  node.tokens = memory;
  node.length = node.room = count;
}

// A node with room for `tokens`, not yet in the tree.
NodeId Tree::take_node(size_t tokens) {
  int32_t* memory = tokens > 0 ? allocated(tokens) : nullptr;
  table_.reserve();
  if (free_.empty()) {
    if (count_ % kChunk == 0) arena_.push_back(std::make_unique<Node[]>(kChunk));
    at(count_).generation = first_generation_;
    free_.push_back(count_++);
  }
  const NodeId id = free_.back();
  free_.pop_back();
  Node& node = at(id);
  const uint32_t generation = node.generation;
  node = Node{};
  node.generation = generation;
  node.tokens = memory;
  node.length = node.room = static_cast<uint32_t>(tokens);
  token_bytes_ += bytes_of(node.room);
  return id;
}

void Tree::fresh_generation(NodeId id) {
  at(id).generation = (at(id).generation + 1) & 0x7fffffffu;  // handles fit a signed number
}

void Tree::give_node(NodeId id) {
  Node& node = at(id);
  token_bytes_ -= bytes_of(node.room);
  std::free(node.tokens);
  node.tokens = nullptr;
  node.digests.reset();
  fresh_generation(id);
  free_.push_back(id);
}

// Puts the first `length` tokens into a parent of their own; the node keeps the rest, and its
// locks, children and place in the order: a caller that touches its path touches the parent only.
void Tree::split(NodeId id, uint32_t length) {
  const NodeId front = take_node(length);
  Node &node = at(id), &parent = at(front);
  const uint32_t rest = node.length - length;
  std::memcpy(parent.keys(), node.keys(), length * sizeof(int32_t));
  std::memcpy(parent.slots(), node.slots(), length * sizeof(int32_t));
  keep(node, length, rest);

  parent.priority = node.priority;
  parent.creation = node.creation;
  parent.last_access = node.last_access;
  parent.hits = node.hits;
  parent.lock_ref = node.lock_ref;
  parent.space = node.space;
  parent.parent = node.parent;
  parent.children = 1;
  parent.hash = node.hash;
  spaces_.enter(node.space);
  table_.replace(node.hash, id, front);
  node.parent = front;
  node.hash = hash_page(front, node.space, node.keys());
  table_.insert(node.hash, id);

  if (node.digests) {
    const uint32_t pages = length / options_.page_size, left = rest / options_.page_size;
    parent.digests.reset(new Digest[pages]);
    std::copy_n(node.digests.get(), pages, parent.digests.get());
    std::unique_ptr<Digest[]> rest(new Digest[left]);
    std::copy_n(node.digests.get() + pages, left, rest.get());
    node.digests = std::move(rest);
  }
  ++stats_.splits;
}

// A leaf for what `ids` has from `from` on; attach() puts it into the tree.
NodeId Tree::add_leaf(NodeId parent, const Sequence& ids, const Sequence& slots, size_t from) {
  const NodeId id = take_node(ids.count - from);
  Node& leaf = at(id);
  copy_numbers(ids, from, leaf.keys(), leaf.length);
  copy_numbers(slots, from, leaf.slots(), leaf.length);
  leaf.parent = parent;
  leaf.creation = leaf.last_access = clock_;
  return id;
}

void Tree::attach(NodeId id) {
  Node& leaf = at(id);
  if (heap_.holds(leaf.parent)) heap_.remove(leaf.parent);
  ++at(leaf.parent).children;
  leaf.hash = hash_page(leaf.parent, leaf.space, leaf.keys());
  table_.insert(leaf.hash, id);
  evictable_ += leaf.length;
  if (events_) digest(id);
  reorder(id);
}

void Tree::digest(NodeId id) {
  Node& node = at(id);
  const Node& parent = at(node.parent);
  const size_t pages = node.length / options_.page_size;
  const size_t page_bytes = options_.page_size * sizeof(int32_t);
  const Name name = spaces_.name_of(node.space);
  const Digest top = digest_of(name);
  const Digest* before = name.is_set ? &top : nullptr;
  const Digest* visible = nullptr;  // routers know no digest of a namespace
  if (node.parent != kRoot) {
    visible = before = &parent.digests[parent.length / options_.page_size - 1];
  }
  node.digests.reset(new Digest[pages]);
  for (size_t i = 0; i < pages; ++i) {
    node.digests[i] = chained(before, node.keys() + i * options_.page_size, page_bytes);
    before = &node.digests[i];
  }
  events_->stored({node.digests.get(), pages, visible, node.keys(), node.length, name});
}

EvictionKey Tree::key_of(const Node& node) const {
  switch (options_.policy) {
    case Policy::lru:
      return {0, node.last_access};
    case Policy::lfu:
      return {node.hits, node.last_access};
    case Policy::fifo:
      return {node.creation, node.last_access};
    case Policy::mru:
      return {~node.last_access, node.last_access};
    case Policy::filo:
      return {~node.creation, node.last_access};
    case Policy::priority:
      return {static_cast<uint64_t>(node.priority) ^ 1ull << 63, node.last_access};
    case Policy::slru:
      return {node.hits >= 2, node.last_access};
  }
  return {};
}

// Puts a node that may be evicted where it belongs in the order.
void Tree::reorder(NodeId id) {
  const Node& node = at(id);
  if (id != kRoot && node.children == 0 && node.lock_ref == 0) heap_.set(id, key_of(node));
}

void Tree::hold(NodeId id) {
  for (;; id = at(id).parent) {
    Node& node = at(id);
    if (node.lock_ref++ == 0) {
      evictable_ -= node.length;
      locked_ += node.length;
      if (heap_.holds(id)) heap_.remove(id);
    }
    if (id == kRoot) return;
  }
}

void Tree::release(NodeId id) {
  for (;; id = at(id).parent) {
    Node& node = at(id);
    if (--node.lock_ref == 0) {
      evictable_ += node.length;
      locked_ -= node.length;
      reorder(id);
    }
    if (id == kRoot) return;
  }
}

size_t Tree::leaves() const {
  size_t count = 0;
  for (NodeId id = 1; id < count_; ++id) count += at(id).tokens && at(id).children == 0;
  return count;
}

size_t Tree::bytes() const {
  const size_t digests = events_ ? (evictable_ + locked_) / options_.page_size * sizeof(Digest) : 0;
  return arena_.size() * kChunk * sizeof(Node) + free_.capacity() * sizeof(NodeId) + token_bytes_ +
         digests + table_.bytes() + heap_.bytes() + spaces_.bytes();
}

}  // namespace commlib::radix
