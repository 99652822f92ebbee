// Namespaces by small numbers: a name is known as long as a node is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace commlib::radix {

// The encoded name of a namespace; no value at all is the one of None.
struct Name {
  bool is_set = false;
  std::string_view bytes;
};

class Spaces {
 public:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kUnknown = UINT32_MAX;

  uint32_t find(const Name& name) const {
    if (!name.is_set) return kNone;
    const auto it = numbers_.find(name.bytes);
    return it == numbers_.end() ? kUnknown : it->second;
  }

  // The number of a name, for one more node.
  uint32_t enter(const Name& name) {
    uint32_t space = find(name);
    if (space == kUnknown) {
      if (free_.empty()) {
        entries_.emplace_back();
        free_.push_back(static_cast<uint32_t>(entries_.size() - 1));
      }
      space = free_.back();
      entries_[space] = {std::string(name.bytes), 0};
      numbers_.emplace(entries_[space].name, space);
      free_.pop_back();
    }
    enter(space);
    return space;
  }
  void enter(uint32_t space) { ++entries_[space].nodes; }
  void leave(uint32_t space) {
    if (--entries_[space].nodes > 0 || space == kNone) return;
    numbers_.erase(entries_[space].name);
    entries_[space].name.clear();
    free_.push_back(space);
  }

  Name name_of(uint32_t space) const { return {space != kNone, entries_[space].name}; }
  size_t nodes_in(uint32_t space) const { return entries_[space].nodes; }
  size_t places() const { return entries_.size(); }
  size_t bytes() const { return entries_.size() * sizeof(Entry); }
  size_t size() const { return numbers_.size() + (entries_[kNone].nodes > 0); }

 private:
  struct Entry {
    std::string name;
    size_t nodes = 0;
  };
  std::map<std::string, uint32_t, std::less<>> numbers_;
  std::vector<Entry> entries_ = std::vector<Entry>(1);
  std::vector<uint32_t> free_;
};

}  // namespace commlib::radix
