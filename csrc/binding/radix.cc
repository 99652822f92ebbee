// RadixCache for Python: every method works under the tree's mutex, and makes its results after
// that. commlib/radix/ has the public half.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "binding/method.h"
#include "radix/tree.h"

namespace commlib::binding {
namespace {

using python::Named;
using python::Owned;
using radix::Tree;

// The classes of commlib/radix/cache.py; for the life of the process.
struct Results {
  Named match, insert, insert_match;
};

radix::Sequence sequence_of(const Array& array) { return {array.data, array.wide, array.count}; }

radix::Name name_of(const std::optional<std::string_view>& name) {
  return name ? radix::Name{true, *name} : radix::Name{};
}

// One thread at a time, also in a Python without its lock. No Python code runs inside: even a tuple
// is made outside of the mutex, since it may start a garbage collection.
class RadixTree {
 public:
  static constexpr const char* kName = "RadixTree";

  RadixTree(std::unique_ptr<Tree> tree, Results results)
      : tree_(std::move(tree)), results_(results) {}

  // Returns Match.
  Object* match(const Array& ids, std::optional<std::string_view> name, bool touch, Object* out) {
    if (!python::is_none(out)) return match_into(ids, name_of(name), touch, out);
    Tree::Match match;
    std::unique_ptr<Fresh> slots;
    {
      const Use tree(this);
      match = tree->match(sequence_of(ids), name_of(name), touch);
      slots = path_of(*tree, match.length);
    }
    return results_.match(python::number(match.length), slots->release(),
                          python::number(match.handle));
  }

  // A tensor of lengths.
  Object* match_many(Object* prompts, Object* names) {
    const Size many = PySequence_Size(prompts);
    if (many < 0) throw python::Raised();
    Fresh lengths(static_cast<size_t>(many), true);
    for (Size i = 0; i < many; ++i) {
      const Owned item(PySequence_GetItem(prompts, i)), name(PySequence_GetItem(names, i));
      const Array ids(item.get(), {"ids"});
      const auto space = From<std::optional<std::string_view>>::take(name.get(), {"name"});
      const Use tree(this);
      lengths.as<int64_t>()[i] = static_cast<int64_t>(tree->peek(sequence_of(ids), name_of(space)));
    }
    return lengths.release();
  }

  // Returns Insert; where something was freed, (that, slots).
  Object* insert(const Array& ids, const Array& slots, std::optional<std::string_view> name,
                 int64_t priority, int64_t counted) {
    return inserted(ids, slots, name_of(name), priority, counted, false);
  }
  // Likewise InsertMatch.
  Object* insert_and_match(const Array& ids, const Array& slots,
                           std::optional<std::string_view> name, int64_t priority,
                           int64_t counted) {
    return inserted(ids, slots, name_of(name), priority, counted, true);
  }

  void lock(int64_t handle) { Use(this)->lock(static_cast<radix::Handle>(handle)); }
  void unlock(int64_t handle) { Use(this)->unlock(static_cast<radix::Handle>(handle)); }

  // Of the path to a handle, or of all nodes.
  Object* slots(std::optional<int64_t> handle) {
    std::unique_ptr<Fresh> held;
    {
      const Use tree(this);
      if (handle) {
        held = path_of(*tree, tree->follow(static_cast<radix::Handle>(*handle)));
      } else {
        held = slots_of(tree->slots());
      }
    }
    return held->release();
  }

  Object* evict(int64_t n, bool at_most) {
    std::unique_ptr<Fresh> freed;
    {
      const Use tree(this);
      tree->evict(n, at_most);
      freed = slots_of(tree->freed());
    }
    return freed->release();
  }

  Object* reset(bool force) {
    std::vector<int32_t> freed;
    {
      const Use tree(this);
      tree->reset(force);
      freed = tree->freed();
    }
    return slots_of(freed)->release();
  }

  // Slots come back as int64 from here on, not as int32.
  void widen(bool wide) { wide_ = wide; }

  int64_t evictable() { return static_cast<int64_t>(Use(this)->evictable()); }
  int64_t locked() { return static_cast<int64_t>(Use(this)->locked()); }
  void check() { Use(this)->check(); }

  // In the order of commlib/radix/cache.py's Stats.
  Object* stats() {
    std::vector<uint64_t> values;
    {
      const Use tree(this);
      const radix::Stats& s = tree->stats();
      values = {s.matches,         s.requested_tokens, s.hit_tokens,     s.inserts,
                s.inserted_tokens, s.evicted_leaves,   s.evicted_tokens, s.splits,
                tree->nodes() - 1, tree->leaves(),     tree->locks(),    tree->bytes()};
    }
    Owned all(PyTuple_New(static_cast<Size>(values.size())));
    for (size_t i = 0; i < values.size(); ++i) {
      PyTuple_SetItem(all.get(), static_cast<Size>(i),
                      python::number(static_cast<int64_t>(values[i])));
    }
    return all.give();
  }

  std::string listing() { return Use(this)->listing(); }

  std::string take_events() {
    const Use tree(this);
    return tree->events() ? tree->events()->take() : "[]";
  }

 private:
  class Use {
   public:
    explicit Use(RadixTree* of) : of_(of) { of_->mutex_.lock(); }
    ~Use() { of_->mutex_.unlock(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Tree* operator->() const { return of_->tree_.get(); }
    Tree& operator*() const { return *of_->tree_; }

   private:
    RadixTree* of_;
  };

  std::unique_ptr<Fresh> slots_of(const std::vector<int32_t>& slots) const {
    auto fresh = std::make_unique<Fresh>(slots.size(), wide_);
    if (wide_) {
      std::copy(slots.begin(), slots.end(), fresh->as<int64_t>());
    } else {
      std::copy(slots.begin(), slots.end(), fresh->as<int32_t>());
    }
    return fresh;
  }

  // The slots of the last match or insert.
  std::unique_ptr<Fresh> path_of(const Tree& tree, size_t length) const {
    auto fresh = std::make_unique<Fresh>(length, wide_);
    if (wide_) {
      tree.copy_slots(fresh->as<int64_t>());
    } else {
      tree.copy_slots(fresh->as<int32_t>());
    }
    return fresh;
  }

  Object* inserted(const Array& ids, const Array& slots, radix::Name name, int64_t priority,
                   int64_t counted, bool matches) {
    if (counted < 0)
      fail("ValueError", "counted is ", counted, ", but must be a number of tokens, 0 or more");
    Tree::Inserted done;
    std::unique_ptr<Fresh> held;
    std::vector<int32_t> freed;
    {
      const Use tree(this);
      done = tree->insert(sequence_of(ids), sequence_of(slots), name, priority,
                          static_cast<size_t>(counted));
      if (!tree->freed().empty()) freed = tree->freed();
      if (matches) {
        held = path_of(*tree, done.length);
      }
    }
    Owned result(
        matches ? results_.insert_match(python::number(done.existing), python::number(done.length),
                                        held->release(), python::number(done.handle))
                : results_.insert(python::number(done.existing), python::number(done.handle)));
    return freed.empty() ? result.give() : python::tuple(result.give(), slots_of(freed)->release());
  }

  Object* match_into(const Array& ids, radix::Name name, bool touch, Object* target) {
    const Array out(target, {"out"}, Array::kWrite);
    if (out.count < ids.count) {
      fail("ValueError", "out has room for ", counted(out.count, "slot"), ", but ids has ",
           counted(ids.count, "token"), "; pass an out that is as long");
    }
    Tree::Match match;
    {
      const Use tree(this);
      match = tree->match(sequence_of(ids), name, touch);
      if (out.wide) {
        tree->copy_slots(static_cast<int64_t*>(out.data));
      } else {
        tree->copy_slots(static_cast<int32_t*>(out.data));
      }
    }
    return results_.match(python::number(match.length), python::again(target),
                          python::number(match.handle));
  }

  std::mutex mutex_;
  std::unique_ptr<Tree> tree_;
  Results results_;
  std::atomic<bool> wide_{false};
};

std::unique_ptr<RadixTree> radix_open(int64_t page_size, int64_t policy, bool tail, bool events,
                                      int64_t capacity, Object* match, Object* insert,
                                      Object* insert_match) {
  radix::Options options;
  options.page_size = static_cast<uint32_t>(page_size);
  options.policy = static_cast<radix::Policy>(policy);
  options.tail = tail;
  options.events = events;
  options.capacity = capacity;
  const Results results = {Named(python::again(match)), Named(python::again(insert)),
                           Named(python::again(insert_match))};
  return std::make_unique<RadixTree>(std::make_unique<Tree>(options), results);
}

COMMLIB_MODULE(module) {
  module.add({
      COMMLIB_METHOD("radix_open", radix_open,
                     "page_size, policy, tail, events, capacity, match, insert, insert_match",
                     "type[Match]; type[Insert]; type[InsertMatch]"),
  });
  module.add_class<RadixTree>({
      COMMLIB_METHOD("match", RadixTree::match, "ids, name, touch, out", "Integers | None; Match"),
      COMMLIB_METHOD("match_many", RadixTree::match_many, "prompts, names",
                     "Sequence[Integers]; Sequence[bytes | None]; Tensor"),
      COMMLIB_METHOD("insert", RadixTree::insert, "ids, slots, name, priority, counted",
                     "Insert | tuple[Insert, Tensor]"),
      COMMLIB_METHOD("insert_and_match", RadixTree::insert_and_match,
                     "ids, slots, name, priority, counted",
                     "InsertMatch | tuple[InsertMatch, Tensor]"),
      COMMLIB_METHOD("lock", RadixTree::lock, "handle"),
      COMMLIB_METHOD("unlock", RadixTree::unlock, "handle"),
      COMMLIB_METHOD("slots", RadixTree::slots, "handle", "Tensor"),
      COMMLIB_METHOD("evict", RadixTree::evict, "n, at_most", "Tensor"),
      COMMLIB_METHOD("reset", RadixTree::reset, "force", "Tensor"),
      COMMLIB_METHOD("widen", RadixTree::widen, "wide"),
      COMMLIB_METHOD("evictable", RadixTree::evictable, ""),
      COMMLIB_METHOD("locked", RadixTree::locked, ""),
      COMMLIB_METHOD("check", RadixTree::check, ""),
      COMMLIB_METHOD("stats", RadixTree::stats, "", "tuple[int, ...]"),
      COMMLIB_METHOD("listing", RadixTree::listing, ""),
      COMMLIB_METHOD("take_events", RadixTree::take_events, ""),
  });
}

}  // namespace
}  // namespace commlib::binding
