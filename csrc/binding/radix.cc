// RadixCache for Python: every method takes plain arguments, works under the tree's mutex, and
// makes its results after that. commlib/radix/ has the public half.
#include "binding/radix.h"

#include <array>
#include <mutex>

#include "binding/python.h"
#include "radix/tree.h"

namespace commlib::binding {
namespace {

using python::Array;
using python::entered;
using python::Fresh;
using python::Named;
using python::Object;
using python::Owned;
using python::Size;
using radix::Tree;

// The classes of commlib/radix/results.py; for the life of the process.
struct Results {
  Named match, insert, insert_match;
};

// One thread at a time, also in a Python without its lock. No Python code runs inside.
struct Cache {
  std::mutex mutex;
  std::unique_ptr<Tree> tree;
  Results results;
};

Cache* cache_of(Object* self) {
  auto* cache = static_cast<Cache*>(python::api.PyCapsule_GetPointer(self, nullptr));
  if (!cache) throw python::Raised();
  return cache;
}

class Use {
 public:
  explicit Use(Object* self) : cache_(cache_of(self)) { cache_->mutex.lock(); }
  ~Use() { cache_->mutex.unlock(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  Tree* operator->() const { return cache_->tree.get(); }

 private:
  Cache* cache_;
};

radix::Sequence sequence_of(const Array& array) { return {array.data, array.wide, array.count}; }

radix::Name name_of(Object* object) {
  if (python::is_none(object)) return {};
  return {true, python::bytes_in(object)};
}

Object* tensor_of(const std::vector<int32_t>& numbers) {
  Fresh fresh(numbers.size(), false);
  std::copy(numbers.begin(), numbers.end(), fresh.as<int32_t>());
  return fresh.release();
}

void copy_into(const Tree& tree, const Array& out) {
  if (out.wide) {
    tree.copy_slots(static_cast<int64_t*>(out.data));
  } else {
    tree.copy_slots(static_cast<int32_t*>(out.data));
  }
}

// (ids, name, touch, out or None) → Match
Object* match(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 4);
    const Array ids(given[0], "ids");
    const radix::Name name = name_of(given[1]);
    const bool touch = python::truth(given[2]);
    Tree::Found found;
    if (!python::is_none(given[3])) {
      const Array out(given[3], "out", true);
      if (out.count < ids.count) {
        fail("ValueError", "out has room for ", out.count, " slots, but ids has ", ids.count,
             " tokens; pass an out that is as long");
      }
      const Use tree(self);
      found = tree->match(sequence_of(ids), name, touch);
      copy_into(*tree.operator->(), out);
      return cache_of(self)->results.match(python::number(found.length), python::again(given[3]),
                                           python::number(found.handle));
    }
    std::unique_ptr<Fresh> slots;
    {
      const Use tree(self);
      found = tree->match(sequence_of(ids), name, touch);
      slots = std::make_unique<Fresh>(found.length, false);
      tree->copy_slots(slots->as<int32_t>());
    }
    return cache_of(self)->results.match(python::number(found.length), slots->release(),
                                         python::number(found.handle));
  });
}

// (list of ids, list of names) → tensor of lengths
Object* match_many(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 2);
    const Size many = python::api.PySequence_Size(given[0]);
    if (many < 0) throw python::Raised();
    Fresh lengths(static_cast<size_t>(many), true);
    for (Size i = 0; i < many; ++i) {
      const Owned item(python::api.PySequence_GetItem(given[0], i));
      const Owned name(python::api.PySequence_GetItem(given[1], i));
      const Array ids(item.get(), "ids");
      const radix::Name space = name_of(name.get());
      const Use tree(self);
      lengths.as<int64_t>()[i] = static_cast<int64_t>(tree->peek(sequence_of(ids), space));
    }
    return lengths.release();
  });
}

// (ids, slots, name, priority, whether to match) → Insert or InsertMatch; where something was
// freed, (that, slots)
Object* insert(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 5);
    const Array ids(given[0], "ids"), slots(given[1], "slots");
    const radix::Name name = name_of(given[2]);
    const int64_t priority = python::integer(given[3], "priority");
    const bool matches = python::truth(given[4]);
    Tree::Inserted done;
    std::unique_ptr<Fresh> held;
    std::vector<int32_t> freed;
    {
      const Use tree(self);
      done = tree->insert(sequence_of(ids), sequence_of(slots), name, priority);
      if (!tree->freed().empty()) freed = tree->freed();
      if (matches) {
        held = std::make_unique<Fresh>(done.length, false);
        tree->copy_slots(held->as<int32_t>());
      }
    }
    const Results& results = cache_of(self)->results;
    Owned result(
        matches ? results.insert_match(python::number(done.existing), python::number(done.length),
                                       held->release(), python::number(done.handle))
                : results.insert(python::number(done.existing), python::number(done.handle)));
    return freed.empty() ? result.give() : python::tuple(result.give(), tensor_of(freed));
  });
}

Object* lock(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 1);
    const int64_t handle = python::integer(given[0], "handle");
    Use(self)->lock(static_cast<radix::Handle>(handle));
    return python::none();
  });
}

Object* unlock(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 1);
    const int64_t handle = python::integer(given[0], "handle");
    Use(self)->unlock(static_cast<radix::Handle>(handle));
    return python::none();
  });
}

Object* evict(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 1);
    const int64_t tokens = python::integer(given[0], "n");
    std::unique_ptr<Fresh> freed;
    {
      const Use tree(self);
      tree->evict(tokens);
      freed = std::make_unique<Fresh>(tree->freed().size(), false);
      std::copy(tree->freed().begin(), tree->freed().end(), freed->as<int32_t>());
    }
    return freed->release();
  });
}

Object* reset(Object* self, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 1);
    const bool force = python::truth(given[0]);
    std::vector<int32_t> freed;
    {
      const Use tree(self);
      tree->reset(force);
      freed = tree->freed();
    }
    return tensor_of(freed);
  });
}

Object* evictable(Object* self, Object* const*, Size) {
  return entered([&] { return python::number(static_cast<int64_t>(Use(self)->evictable())); });
}

Object* locked(Object* self, Object* const*, Size) {
  return entered([&] { return python::number(static_cast<int64_t>(Use(self)->locked())); });
}

Object* check(Object* self, Object* const*, Size) {
  return entered([&] {
    Use(self)->check();
    return python::none();
  });
}

// In the order of commlib/radix/results.py's Stats. A tuple is made outside of the mutex: it may
// start a garbage collection, and that runs Python code.
Object* stats(Object* self, Object* const*, Size) {
  return entered([&] {
    std::vector<uint64_t> values;
    {
      const Use tree(self);
      const radix::Stats& s = tree->stats();
      values = {s.matches,         s.requested_tokens, s.hit_tokens,     s.inserts,
                s.inserted_tokens, s.evicted_leaves,   s.evicted_tokens, s.splits,
                tree->nodes() - 1, tree->leaves(),     tree->locks(),    tree->bytes()};
    }
    Owned all(python::api.PyTuple_New(static_cast<Size>(values.size())));
    for (size_t i = 0; i < values.size(); ++i) {
      python::api.PyTuple_SetItem(all.get(), static_cast<Size>(i),
                                  python::number(static_cast<int64_t>(values[i])));
    }
    return all.give();
  });
}

Object* listing(Object* self, Object* const*, Size) {
  return entered([&] {
    std::vector<int64_t> numbers;
    std::vector<std::string> names;
    {
      const Use tree(self);
      numbers = tree->listing();
      names = tree->space_names();
    }
    Owned all(python::api.PyTuple_New(static_cast<Size>(names.size())));
    for (size_t i = 0; i < names.size(); ++i)
      python::api.PyTuple_SetItem(all.get(), static_cast<Size>(i), python::bytes(names[i]));
    Owned table(python::bytes(
        {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)}));
    return python::tuple(table.give(), all.give());
  });
}

Object* snapshot(Object* self, Object* const*, Size) {
  return entered([&] { return python::bytes(Use(self)->snapshot()); });
}

Object* take_events(Object* self, Object* const*, Size) {
  return entered([&] {
    const Use tree(self);
    return tree->events() ? python::bytes(tree->events()->take()) : python::none();
  });
}

Object* settings(Object* self, Object* const*, Size) {
  return entered([&] {
    const radix::Options options = Use(self)->options();
    return python::tuple(python::number(options.page_size),
                         python::number(static_cast<int64_t>(options.policy)),
                         python::number(options.tail), python::number(options.events),
                         python::number(options.capacity));
  });
}

void drop(Object* capsule) {
  delete static_cast<Cache*>(python::api.PyCapsule_GetPointer(capsule, nullptr));
}

// The methods of one tree, by name; they share it and keep it alive. `results` are three classes.
Object* bound(std::unique_ptr<Tree> tree, Object* const* results) {
  static std::array<python::Method, 15> methods = {{
      {"match", match, python::kFastCall, nullptr},
      {"match_many", match_many, python::kFastCall, nullptr},
      {"insert", insert, python::kFastCall, nullptr},
      {"lock", lock, python::kFastCall, nullptr},
      {"unlock", unlock, python::kFastCall, nullptr},
      {"evict", evict, python::kFastCall, nullptr},
      {"reset", reset, python::kFastCall, nullptr},
      {"evictable", evictable, python::kFastCall, nullptr},
      {"locked", locked, python::kFastCall, nullptr},
      {"check", check, python::kFastCall, nullptr},
      {"stats", stats, python::kFastCall, nullptr},
      {"listing", listing, python::kFastCall, nullptr},
      {"snapshot", snapshot, python::kFastCall, nullptr},
      {"take_events", take_events, python::kFastCall, nullptr},
      {"settings", settings, python::kFastCall, nullptr},
  }};
  const auto named = [&](int at) { return Named(python::again(results[at])); };
  std::unique_ptr<Cache> cache(new Cache{{}, std::move(tree), {named(0), named(1), named(2)}});
  const Owned self(python::api.PyCapsule_New(cache.get(), nullptr, drop));
  cache.release();
  Owned all(python::api.PyDict_New());
  for (python::Method& method : methods) {
    const Owned function(python::api.PyCFunction_NewEx(&method, self.get(), nullptr));
    if (python::api.PyDict_SetItemString(all.get(), method.name, function.get()) != 0)
      throw python::Raised();
  }
  return all.give();
}

}  // namespace

// (page_size, policy, tail, events, capacity, Match, Insert, InsertMatch) → methods
Object* radix_open(Object*, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 8);
    radix::Options options;
    options.page_size = static_cast<uint32_t>(python::integer(given[0], "page_size"));
    options.policy = static_cast<radix::Policy>(python::integer(given[1], "policy"));
    options.tail = python::truth(given[2]);
    options.events = python::truth(given[3]);
    options.capacity = python::integer(given[4], "capacity");
    return bound(std::make_unique<Tree>(options), given + 5);
  });
}

// (bytes, Match, Insert, InsertMatch) → methods
Object* radix_restore(Object*, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 4);
    return bound(Tree::restored(python::bytes_in(given[0])), given + 1);
  });
}

}  // namespace commlib::binding
