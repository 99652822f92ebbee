// What routers learn: which blocks of which prefixes came and went.
//
// A block is a page; its name is a chained hash: SHA-256 of the parent block's digest and the
// page's tokens as 4 bytes each, little-endian. The first block of a path chains to the digest of
// its namespace, or to nothing where that is None. Routers get the first 8 bytes as a signed
// number.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "radix/spaces.h"

namespace commlib::radix {

using Digest = std::array<uint8_t, 32>;

// SHA-256 of a digest (or none) followed by bytes.
Digest chained(const Digest* parent, const void* data, size_t bytes);

// The digest that the first page of a namespace chains to.
Digest digest_of(const Name& space);

inline int64_t number_of(const Digest& digest) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | digest[i];
  return static_cast<int64_t>(value);
}

class Events {
 public:
  struct Stored {
    const Digest* digests;
    size_t pages;
    const Digest* parent;  // null at the root
    const int32_t* tokens;
    size_t count;
    Name space;
  };
  void stored(const Stored& what);
  // Removed blocks gather in one event until close().
  void removed(const Digest& digest) { going_.push_back(number_of(digest)); }
  void close();
  void cleared();

  // All events since the last call as JSON, which commlib/radix/events.py reads.
  std::string take();

 private:
  struct Event {
    std::vector<int64_t> hashes;
    std::vector<int32_t> tokens;  // none: the blocks went, or without hashes all of them
    std::optional<int64_t> parent;
    std::optional<std::string> space;
  };

  std::vector<int64_t> going_;
  std::vector<Event> events_;
};

}  // namespace commlib::radix
