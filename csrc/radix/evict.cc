// Nodes go: whole leaves or pages from the end of one, for room or all at once; what they held is
// gathered in freed().
#include <algorithm>

#include "commlib/check.h"
#include "radix/tree.h"

namespace commlib::radix {

void Tree::forget_pages(const Node& node, uint32_t first_token) {
  if (!events_) return;
  for (uint32_t page = first_token / options_.page_size; page < node.length / options_.page_size;
       ++page) {
    events_->removed(node.digests[page]);
  }
}

void Tree::remove_leaf(NodeId id) {
  Node& leaf = at(id);
  freed_.insert(freed_.end(), leaf.slots(), leaf.slots() + leaf.length);
  forget_pages(leaf, 0);
  evictable_ -= leaf.length;
  heap_.remove(id);
  table_.erase(leaf.hash, id);
  spaces_.leave(leaf.space);
  --at(leaf.parent).children;
  reorder(leaf.parent);
  give_node(id);
}

// Takes the last `tokens` off a leaf. It ends elsewhere now, so handles to it die. Memory follows
// when half of it is unused: trimming page by page stays linear.
void Tree::trim_leaf(NodeId id, uint32_t tokens) {
  Node& leaf = at(id);
  const uint32_t length = leaf.length - tokens;
  freed_.insert(freed_.end(), leaf.slots() + length, leaf.slots() + leaf.length);
  forget_pages(leaf, length);
  evictable_ -= tokens;
  leaf.length = length;
  fresh_generation(id);
  if (length <= leaf.room / 2) keep(leaf, 0, length);
}

// `tokens` are there to be evicted.
void Tree::evict_until(size_t tokens) {
  while (freed_.size() < tokens) {
    const NodeId id = heap_.top();
    const size_t page = options_.page_size;
    const size_t wanted = (tokens - freed_.size() + page - 1) / page * page;
    ++stats_.evicted_leaves;
    if (options_.tail && wanted < at(id).length) {
      trim_leaf(id, static_cast<uint32_t>(wanted));
    } else {
      remove_leaf(id);
    }
  }
  stats_.evicted_tokens += freed_.size();
  if (events_) events_->close();
}

void Tree::evict(int64_t tokens, bool at_most) {
  freed_.clear();
  if (tokens < 0) fail("ValueError", "evict() is asked for ", tokens, " tokens; pass 0 or more");
  const size_t there = std::min(static_cast<size_t>(tokens), evictable_);
  if (there < static_cast<size_t>(tokens) && !at_most) {
    fail("ValueError", "evict() is asked for ", counted(tokens, "token"), ", but ", evictable_,
         " are evictable and ", locked_, " locked; unlock handles first, or pass at_most=True");
  }
  evict_until(there);
}

// Before anything is changed: what is on the path of an insert stays, the rest must suffice.
void Tree::can_make_room(size_t fresh) const {
  if (options_.capacity < 0 || fresh == 0) return;
  size_t needed = 0;
  for (const Step& step : path_) {
    if (at(step.node).lock_ref == 0) needed += step.length;
  }
  const size_t capacity = static_cast<size_t>(options_.capacity);
  const size_t held = evictable_ + locked_;
  if (held + fresh <= capacity || held + fresh - capacity <= evictable_ - needed) return;
  fail("ValueError", "insert() adds ", counted(fresh, "token"), ", but capacity is ", capacity,
       ": ", locked_, " are locked and ", needed,
       " are the prefix itself; unlock handles, or insert fewer tokens");
}

void Tree::make_room(size_t fresh, NodeId keep) {
  const size_t held = evictable_ + locked_;
  if (options_.capacity < 0 || held + fresh <= static_cast<size_t>(options_.capacity)) return;
  hold(keep);
  evict_until(held + fresh - static_cast<size_t>(options_.capacity));
  release(keep);
}

void Tree::reset(bool force) {
  freed_.clear();
  if (held_ > 0 && !force) {
    fail("ValueError", "reset() would free what is in use: ", counted(locked_, "token"),
         ", held by ", counted(held_, "lock"), "; unlock them, or pass force=True");
  }
  for (NodeId id = 1; id < count_; ++id) {
    Node& node = at(id);
    if (!node.tokens) continue;
    freed_.insert(freed_.end(), node.slots(), node.slots() + node.length);
    spaces_.leave(node.space);
    give_node(id);
  }
  table_.clear();
  heap_.clear();
  Node& root = at(kRoot);
  root.children = root.handle_locks = 0;
  root.lock_ref = 1;
  fresh_generation(kRoot);
  evictable_ = locked_ = held_ = 0;
  path_.clear();
  if (events_) events_->cleared();
}

}  // namespace commlib::radix
