// Every invariant of the tree, recomputed from its nodes only; and the tree as text.
#include "commlib/check.h"

#include <algorithm>
#include <utility>

#include "radix/tree.h"

namespace commlib::radix {

class Checker {
 public:
  explicit Checker(const Tree& tree) : tree_(tree) {}

  void run() {
    collect();
    counts();
    for (NodeId id : order_) one(id);
    slots();
  }

  // A line for each node, indented below its parent.
  std::string listing() {
    collect();
    std::string all = text("root, ", counted(tree_.at(Tree::kRoot).handle_locks, "lock"));
    std::vector<Line> lines;
    add_below(Tree::kRoot, "", &lines);
    while (!lines.empty()) {
      const Line line = lines.back();
      lines.pop_back();
      all += "\n" + line.indent + (line.last ? "└─ " : "├─ ") + described(line.node);
      add_below(line.node, line.indent + (line.last ? "   " : "│  "), &lines);
    }
    return all;
  }

 private:
  struct Line {
    NodeId node;
    std::string indent;
    bool last;  // of its parent's
  };

  // The first one at the end.
  void add_below(NodeId parent, const std::string& indent, std::vector<Line>* lines) {
    std::vector<NodeId>& below = children_[parent];
    const auto key = [this](NodeId id) {
      return std::pair(name_of(tree_.at(id)), tree_.at(id).keys()[0]);
    };
    std::sort(below.begin(), below.end(), [&](NodeId a, NodeId b) { return key(a) > key(b); });
    for (const NodeId id : below) lines->push_back({id, indent, id == below.front()});
  }

  std::string_view name_of(const Node& node) const {
    const Name name = tree_.spaces_.name_of(node.space);
    return name.is_set ? name.bytes : "None";
  }

  std::string described(NodeId id) const {
    const Node& node = tree_.at(id);
    std::string all = text("#", id, "  ", counted(node.length, "token"), "  ", node.keys()[0]);
    if (node.length > 1) all += text("…", node.keys()[node.length - 1]);
    all += text("  hits ", node.hits, "  used ", node.last_access);
    if (node.lock_ref) all += text("  locked ", node.lock_ref);
    if (node.priority) all += text("  priority ", node.priority);
    if (node.parent == Tree::kRoot && node.space != Spaces::kNone)
      all += text("  in ", name_of(node));
    return all;
  }

  // Live nodes, parents before their children.
  void collect() {
    children_.resize(tree_.count_);
    for (NodeId id = 1; id < tree_.count_; ++id) {
      const Node& node = tree_.at(id);
      if (!node.tokens) continue;
      ++live_;
      must(tree_.alive(node.parent) && node.parent != id, id, "has no living parent");
      children_[node.parent].push_back(id);
    }
    order_.push_back(Tree::kRoot);
    for (size_t i = 0; i < order_.size(); ++i) {
      auto& below = children_[order_[i]];
      order_.insert(order_.end(), below.begin(), below.end());
    }
    must(order_.size() == live_ + 1, Tree::kRoot, "does not reach every node");
  }

  template <class... Parts>
  static void must(bool holds, NodeId id, const Parts&... parts) {
    if (!holds) fail("RuntimeError", "internal: node ", id, " ", parts...);
  }

  void counts() {
    size_t evictable = 0, locked = 0, held = 0, candidates = 0;
    for (NodeId id : order_) {
      const Node& node = tree_.at(id);
      (node.lock_ref == 0 ? evictable : locked) += node.length;
      held += node.handle_locks;
      candidates += id != Tree::kRoot && node.lock_ref == 0 && node.children == 0;
    }
    const NodeId root = Tree::kRoot;
    must(evictable == tree_.evictable_, root, "I5: evictable is ", tree_.evictable_, ", nodes say ",
         evictable);
    must(locked == tree_.locked_, root, "I5: locked is ", tree_.locked_, ", nodes say ", locked);
    must(held == tree_.held_, root, "I4: ", tree_.held_, " locks, nodes say ", held);
    must(candidates == tree_.heap_.size(), root, "I8: ", tree_.heap_.size(),
         " candidates, nodes say ", candidates);
    must(live_ == tree_.table_.size(), root, "I2: ", tree_.table_.size(), " in the table, not ",
         live_);
    must(live_ + 1 + tree_.free_.size() == tree_.count_, root, "I9: nodes were lost");
    must(tree_.at(root).length == 0 && !tree_.at(root).tokens, root, "I1: the root has tokens");
    std::vector<size_t> in(tree_.spaces_.places());
    for (size_t i = 1; i < order_.size(); ++i) ++in.at(tree_.at(order_[i]).space);
    for (uint32_t space = 0; space < in.size(); ++space) {
      must(in[space] == tree_.spaces_.nodes_in(space), root, "I3: namespace ", space, " has ",
           in[space], " nodes, not ", tree_.spaces_.nodes_in(space));
    }
  }

  void one(NodeId id) {
    const Node& node = tree_.at(id);
    uint64_t below = node.handle_locks + (id == Tree::kRoot);
    for (NodeId child : children_[id]) below += tree_.at(child).lock_ref;
    must(node.lock_ref == below, id, "I4: lock_ref is ", node.lock_ref, ", not ", below);
    must(node.children == children_[id].size(), id, "has ", children_[id].size(), " children, not ",
         node.children);
    if (id == Tree::kRoot) return;
    const Node& parent = tree_.at(node.parent);
    const uint32_t page = tree_.options_.page_size;
    must(node.length > 0 && node.length % page == 0 && node.length <= node.room, id,
         "I1: length is ", node.length, ", pages have ", page);
    must(node.parent == Tree::kRoot || parent.space == node.space, id, "I3: is in namespace ",
         node.space, ", its parent in ", parent.space);
    must(node.lock_ref == 0 || parent.lock_ref > 0, id, "I6: is locked, its parent is not");
    must(tree_.child_of(node.parent, node.space, node.keys(), node.length).node == id, id,
         "I2: is not what its first page finds");
    const bool candidate = node.lock_ref == 0 && node.children == 0;
    must(tree_.heap_.holds(id) == candidate, id, "I8: is a candidate or not, wrongly");
    if (candidate) keyed(id);
    if (tree_.events_) hashed(id);
  }

  void keyed(NodeId id) {
    const EvictionKey has = tree_.heap_.key_of(id), needs = tree_.key_of(tree_.at(id));
    must(has.first == needs.first && has.last_access == needs.last_access, id,
         "I8: has an old key");
    must(tree_.heap_.ordered(id), id, "I8: is out of order");
  }

  void hashed(NodeId id) {
    const Node &node = tree_.at(id), &parent = tree_.at(node.parent);
    const uint32_t page = tree_.options_.page_size;
    const Name name = tree_.spaces_.name_of(node.space);
    const Digest top = digest_of(name);
    const Digest* before = name.is_set ? &top : nullptr;
    if (node.parent != Tree::kRoot) before = &parent.digests[parent.length / page - 1];
    for (uint32_t i = 0; i < node.length / page; ++i) {
      const Digest digest = chained(before, node.keys() + size_t{i} * page, size_t{page} * 4);
      must(digest == node.digests[i], id, "I10: has another hash of page ", i);
      before = &node.digests[i];
    }
  }

  void slots() {
    std::vector<int32_t> all = tree_.slots();
    std::sort(all.begin(), all.end());
    const auto twice = std::adjacent_find(all.begin(), all.end());
    must(twice == all.end(), Tree::kRoot, "I7: slot ", twice == all.end() ? 0 : *twice,
         " was inserted twice");
  }

  const Tree& tree_;
  std::vector<std::vector<NodeId>> children_;
  std::vector<NodeId> order_;
  size_t live_ = 0;
};

void Tree::check() const { Checker(*this).run(); }

std::string Tree::listing() const { return Checker(*this).listing(); }

}  // namespace commlib::radix
