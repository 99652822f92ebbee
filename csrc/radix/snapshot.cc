// A tree as bytes: header | names of namespaces | nodes | keys and slots of each | checksum.
// Nodes are numbered anew, in their old order, so that ties of the eviction order stay as they
// were. What is read is taken for hostile: sizes are checked before use, the result by check().
#include <cstring>

#include "commlib/check.h"
#include "radix/tree.h"

namespace commlib::radix {
namespace {

constexpr char kMagic[8] = {'c', 'm', 'l', 'r', 'a', 'd', 'i', 'x'};
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version, page_size, policy, tail, events, spaces;
  int64_t capacity;
  uint64_t clock;
  uint64_t nodes;  // without the root
};

struct Record {
  int64_t priority;
  uint64_t last_access, creation;
  uint32_t parent, length, space, hits;
};

template <class T>
void put(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Takes values off the front.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  std::string_view take(size_t bytes) {
    if (bytes > left_.size()) fail("ValueError", "the snapshot is cut short; take another");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

void sound(bool holds, const char* what) {
  if (!holds) fail("ValueError", "the snapshot is damaged (", what, "); take another");
}

}  // namespace

uint64_t checksum(std::string_view bytes) {
  uint64_t sum = 1469598103934665603u;  // FNV-1a, over words of 8 bytes
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, bytes.size() - i < 8 ? bytes.size() - i : 8);
    sum = (sum ^ word) * 1099511628211u;
    sum ^= sum >> 29;
  }
  return sum;
}

class Writer {
 public:
  explicit Writer(const Tree& tree) : tree_(tree) {}

  std::string run() {
    number();
    const Options& options = tree_.options_;
    Header header = {};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.version = kVersion;
    header.page_size = options.page_size;
    header.policy = static_cast<uint32_t>(options.policy);
    header.tail = options.tail;
    header.events = options.events;
    header.spaces = static_cast<uint32_t>(names_.size());
    header.capacity = options.capacity;
    header.clock = tree_.clock_;
    header.nodes = nodes_.size();
    put(&out_, header);
    for (uint32_t space : names_) {
      const Name name = tree_.spaces_.name_of(space);
      put(&out_, static_cast<uint32_t>(name.bytes.size()));
      out_.append(name.bytes);
    }
    for (NodeId id : nodes_) record(tree_.at(id));
    for (NodeId id : nodes_) tokens(tree_.at(id));
    put(&out_, checksum(out_));
    return std::move(out_);
  }

 private:
  // Namespaces in the order of their first nodes: equal trees give equal bytes.
  void number() {
    number_.resize(tree_.count_);
    space_.resize(tree_.spaces_.places());
    for (NodeId id = 1; id < tree_.count_; ++id) {
      const Node& node = tree_.at(id);
      if (!node.tokens) continue;
      nodes_.push_back(id);
      number_[id] = static_cast<NodeId>(nodes_.size());
      if (node.space == Spaces::kNone || space_[node.space] != 0) continue;
      names_.push_back(node.space);
      space_[node.space] = static_cast<uint32_t>(names_.size());
    }
  }

  void record(const Node& node) {
    put(&out_, Record{node.priority, node.last_access, node.creation, number_[node.parent],
                      node.length, space_[node.space], node.hits});
  }

  void tokens(const Node& node) {
    out_.append(reinterpret_cast<const char*>(node.keys()), size_t{node.length} * 4);
    out_.append(reinterpret_cast<const char*>(node.slots()), size_t{node.length} * 4);
  }

  const Tree& tree_;
  std::string out_;
  std::vector<NodeId> nodes_, number_;
  std::vector<uint32_t> names_, space_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : in_(bytes) {}

  std::unique_ptr<Tree> run() {
    const auto header = in_.take<Header>();
    Options options;
    options.page_size = header.page_size;
    options.policy = static_cast<Policy>(header.policy);
    options.tail = header.tail != 0;
    options.events = header.events != 0;
    options.capacity = header.capacity;
    sound(header.page_size > 0 && header.policy < kPolicies && header.capacity >= -1, "options");
    tree_ = std::make_unique<Tree>(options);
    tree_->clock_ = header.clock;
    for (uint32_t i = 0; i < header.spaces; ++i) names_.push_back(in_.take(in_.take<uint32_t>()));
    sound(header.nodes <= in_.left() / sizeof(Record), "number of nodes");
    for (uint64_t i = 0; i < header.nodes; ++i) records_.push_back(in_.take<Record>());
    for (const Record& record : records_) place(record);
    sound(in_.left() == 0, "bytes that nobody wrote");
    link();
    return std::move(tree_);
  }

 private:
  void place(const Record& record) {
    const uint32_t page = tree_->options_.page_size;
    sound(record.length > 0 && record.length % page == 0 && record.length <= INT32_MAX &&
              record.length <= in_.left() / 8,
          "length of a node");
    sound(record.parent <= records_.size() && record.space <= names_.size(), "links");
    const NodeId id = tree_->take_node(record.length);
    Node& node = tree_->at(id);
    std::memcpy(node.keys(), in_.take(size_t{record.length} * 4).data(), size_t{record.length} * 4);
    std::memcpy(node.slots(), in_.take(size_t{record.length} * 4).data(),
                size_t{record.length} * 4);
    node.parent = record.parent;
    node.priority = record.priority;
    node.last_access = record.last_access;
    node.creation = record.creation;
    node.hits = record.hits;
    node.space =
        record.space == 0 ? Spaces::kNone : tree_->spaces_.find({true, names_[record.space - 1]});
    if (node.space == Spaces::kUnknown)
      node.space = tree_->spaces_.enter({true, names_[record.space - 1]});
    else
      tree_->spaces_.enter(node.space);
    sound(node.last_access <= tree_->clock_ && node.creation <= tree_->clock_, "clock");
    tree_->evictable_ += node.length;
  }

  void link() {
    for (NodeId id = 1; id < tree_->count_; ++id) {
      Node& node = tree_->at(id);
      ++tree_->at(node.parent).children;
      node.hash = tree_->hash_page(node.parent, node.space, node.keys());
      tree_->table_.insert(node.hash, id);
    }
    for (NodeId id = 1; id < tree_->count_; ++id) tree_->reorder(id);
    try {
      const std::vector<int64_t> order = tree_->listing();
      for (size_t i = Tree::kFields; tree_->events_ && i < order.size(); i += Tree::kFields)
        tree_->digest(static_cast<NodeId>(order[i]));
      tree_->check();
    } catch (const Failure& failure) {
      fail("ValueError", "the snapshot is damaged (", failure.what(), "); take another");
    }
  }

  Cursor in_;
  std::unique_ptr<Tree> tree_;
  std::vector<std::string_view> names_;
  std::vector<Record> records_;
};

std::string Tree::snapshot() const { return Writer(*this).run(); }

std::unique_ptr<Tree> Tree::restored(std::string_view bytes) {
  if (bytes.size() < sizeof(Header) + 8 || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    fail("ValueError", "these ", bytes.size(), " bytes are not a snapshot of a RadixCache");
  uint32_t version;
  std::memcpy(&version, bytes.data() + sizeof(kMagic), sizeof(version));
  if (version != kVersion) {
    fail("ValueError", "the snapshot has version ", version, ", but this commlib reads version ",
         kVersion, "; take it again with this one");
  }
  uint64_t sum;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof(sum), sizeof(sum));
  bytes.remove_suffix(sizeof(sum));
  sound(checksum(bytes) == sum, "checksum");
  return Reader(bytes).run();
}

}  // namespace commlib::radix
