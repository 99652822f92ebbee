// Walking the tree: match, insert, lock. A walk looks a child up by its first page, compares the
// whole node at once, and notes its steps; only then is anything changed.
#include "radix/tree.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>

#include "commlib/check.h"
#include "kernels/prefix/host.h"

namespace commlib::radix {
namespace {

// Trees start with different generations: a handle of another tree is almost certainly noticed.
uint32_t next_generation() {
  static std::atomic<uint32_t> trees{0};
  return (trees.fetch_add(1) * 0x01000193u + 1) & 0x7fffffffu;
}

// A number whose bits from the 31st on are 0 if an int32 holds it and, unless kSigned, it is not
// negative.
template <bool kSigned, class Number>
Number excess(Number number) {
  constexpr int kSign = sizeof(Number) * 8 - 1;
  return kSigned ? number ^ (number >> kSign) : number;
}

// The first of `count` numbers that does not fit, or count. Blocks of a constant length: the
// compiler makes vectors of them.
template <bool kSigned, class Number>
size_t first_outside(const Number* numbers, size_t count) {
  constexpr size_t kBlock = 64;
  const auto fits = [](Number excess) { return excess >= 0 && excess <= INT32_MAX; };
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    Number any = 0;
    for (size_t k = 0; k < kBlock; ++k) any |= excess<kSigned>(numbers[i + k]);
    if (!fits(any)) break;
  }
  while (i < count && fits(excess<kSigned>(numbers[i]))) ++i;
  return i;
}

template <bool kSigned, class Number>
void must_fit(const Number* numbers, const char* name, size_t from, size_t to) {
  const size_t outside = from + first_outside<kSigned>(numbers + from, to - from);
  if (outside == to) return;
  fail("ValueError", name, "[", outside, "] is ", numbers[outside],
       ", but the tree keeps numbers from ", kSigned ? INT32_MIN : 0, " to ", INT32_MAX,
       "; pass others");
}

// Negative ids are accepted, negative slots are not.
template <bool kSigned>
void must_fit(const Sequence& sequence, const char* name, size_t from, size_t to) {
  if (sequence.wide) {
    must_fit<kSigned>(static_cast<const int64_t*>(sequence.data), name, from, to);
  } else if (!kSigned) {
    must_fit<kSigned>(static_cast<const int32_t*>(sequence.data), name, from, to);
  }
}

}  // namespace

Tree::Tree(const Options& options)
    : options_(options), first_generation_(next_generation()), seed_(std::random_device{}()) {
  if (options.page_size < 1) fail("ValueError", "page_size is 0, but a page has 1 token or more");
  if (options.events) events_ = std::make_unique<Events>();
  take_node(0);
  at(kRoot).lock_ref = 1;
}

Tree::~Tree() {
  for (NodeId id = 0; id < count_; ++id) std::free(at(id).tokens);
}

NodeId Tree::resolve(Handle handle) const {
  const auto id = static_cast<NodeId>(handle);
  if (alive(id) && at(id).generation == handle >> 32) return id;
  fail("ValueError", "handle ", handle,
       " is dead: its prefix was evicted or reset, or it belongs to another cache; match again");
}

// The child whose first page is that of `ids`, and how many of its tokens, in whole pages, agree.
template <class Id>
Tree::Step Tree::child_of(NodeId parent, uint32_t space, const Id* ids, size_t left) const {
  Step step = {Table::kFree, 0};
  step.node = table_.find(hash_page(parent, space, ids), [&](NodeId id) {
    const Node& node = at(id);
    if (node.parent != parent || node.space != space) return false;
    const size_t count = std::min<size_t>(node.length, left);
    const size_t same = kernels::prefix_match(node.keys(), ids, count);
    step.length = static_cast<uint32_t>(same - same % options_.page_size);
    return step.length > 0;
  });
  return step;
}

template Tree::Step Tree::child_of(NodeId, uint32_t, const int32_t*, size_t) const;

template <class Id>
size_t Tree::walk_ids(const Id* ids, size_t count, uint32_t space) {
  size_t done = 0;
  NodeId parent = kRoot;
  while (count - done >= options_.page_size) {
    const Step step = child_of(parent, space, ids + done, count - done);
    if (step.node == Table::kFree) break;
    path_.push_back(step);
    done += step.length;
    parent = step.node;
    if (step.length < at(parent).length) break;
  }
  return done;
}

// Fills path_ with the steps of the longest prefix; returns its length.
size_t Tree::walk(const Sequence& ids, const Name& name) {
  path_.clear();
  const uint32_t space = spaces_.find(name);
  if (space == Spaces::kUnknown) return 0;
  return ids.wide ? walk_ids(static_cast<const int64_t*>(ids.data), ids.count, space)
                  : walk_ids(static_cast<const int32_t*>(ids.data), ids.count, space);
}

// The node that ends exactly where the walk did, for which one may have to be split.
NodeId Tree::end_of_path() {
  if (path_.empty()) return kRoot;
  Step& last = path_.back();
  if (last.length < at(last.node).length) {
    split(last.node, last.length);
    last.node = at(last.node).parent;
  }
  return last.node;
}

Tree::Match Tree::match(const Sequence& ids, const Name& space, bool touch) {
  const size_t length = walk(ids, space);
  const NodeId end = end_of_path();
  if (touch) {
    ++clock_;
    for (const Step& step : path_) at(step.node).last_access = clock_;
    reorder(end);
  }
  ++stats_.matches;
  stats_.requested_tokens += ids.count;
  stats_.hit_tokens += length;
  return {length, handle_of(end)};
}

size_t Tree::peek(const Sequence& ids, const Name& space) { return walk(ids, space); }

size_t Tree::follow(Handle handle) {
  size_t length = 0;
  path_.clear();
  for (NodeId id = resolve(handle); id != kRoot; id = at(id).parent) {
    path_.push_back({id, at(id).length});
    length += at(id).length;
  }
  std::reverse(path_.begin(), path_.end());
  return length;
}

std::vector<int32_t> Tree::slots() const {
  std::vector<int32_t> all;
  for (NodeId id = 1; id < count_; ++id) {
    const Node& node = at(id);
    if (node.tokens) all.insert(all.end(), node.slots(), node.slots() + node.length);
  }
  return all;
}

template <class Slot>
void Tree::copy_path(Slot* out) const {
  for (const Step& step : path_) {
    const int32_t* slots = at(step.node).slots();
    out = std::copy(slots, slots + step.length, out);
  }
}

void Tree::copy_slots(int32_t* out) const { copy_path(out); }
void Tree::copy_slots(int64_t* out) const { copy_path(out); }

Tree::Inserted Tree::insert(const Sequence& ids, const Sequence& slots, const Name& space,
                            int64_t priority, size_t counted) {
  freed_.clear();
  if (ids.count != slots.count) {
    fail("ValueError", "ids has ", commlib::counted(ids.count, "token"), ", but slots has ",
         slots.count, "; pass one slot for each token");
  }
  const size_t length = ids.count - ids.count % options_.page_size;
  if (length > INT32_MAX)
    fail("ValueError", "ids has ", ids.count, " tokens; pass fewer than 2^31");
  const size_t existing = walk({ids.data, ids.wide, length}, space), fresh = length - existing;
  must_fit<true>(ids, "ids", existing, length);
  must_fit<false>(slots, "slots", existing, length);
  can_make_room(fresh);
  NodeId end = end_of_path();
  ++clock_;
  size_t passed = 0;
  for (const Step& step : path_) {
    Node& node = at(step.node);
    passed += step.length;
    node.last_access = clock_;
    node.priority = std::max(node.priority, priority);
    node.hits += passed > counted;
  }
  if (fresh == 0) {
    reorder(end);
  } else {
    make_room(fresh, end);
    end = add_leaf(end, {ids.data, ids.wide, length}, slots, existing);
    Node& leaf = at(end);
    leaf.priority = priority;
    leaf.hits = length > counted;
    leaf.space = spaces_.enter(space);
    attach(end);
    path_.push_back({end, leaf.length});
  }
  ++stats_.inserts;
  stats_.inserted_tokens += fresh;
  return {existing, length, handle_of(end)};
}

void Tree::lock(Handle handle) {
  const NodeId id = resolve(handle);
  ++at(id).handle_locks;
  ++held_;
  hold(id);
}

void Tree::unlock(Handle handle) {
  const NodeId id = resolve(handle);
  if (at(id).handle_locks == 0) {
    fail("ValueError", "handle ", handle,
         " is not locked, but unlock() takes back one lock(); call it once for each");
  }
  --at(id).handle_locks;
  --held_;
  release(id);
}

}  // namespace commlib::radix
