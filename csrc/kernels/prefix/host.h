// How many leading tokens two sequences share: compares compiled for each x86-64 level, one of
// them chosen when the library is first used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commlib::kernels {

// Each returns how many of the first `count` elements are equal from the start on.
struct PrefixTable {
  const char* isa;
  size_t (*same32)(const int32_t* a, const int32_t* b, size_t count);
  size_t (*same64)(const int64_t* a, const int64_t* b, size_t count);
  size_t (*mixed)(const int32_t* a, const int64_t* b, size_t count);
};

// The compares for the best x86-64 level of this CPU, or for the one named ("v2", "v3", "v4");
// null if the CPU does not have that level.
const PrefixTable* prefix_table(const char* isa);

// What the functions below use: the best level, until prefix_use() names another; false: this CPU
// does not have it.
extern const PrefixTable* prefix;
bool prefix_use(const char* isa);

inline size_t prefix_match(const int32_t* a, const int32_t* b, size_t count) {
  return prefix->same32(a, b, count);
}
inline size_t prefix_match(const int64_t* a, const int64_t* b, size_t count) {
  return prefix->same64(a, b, count);
}
inline size_t prefix_match(const int32_t* a, const int64_t* b, size_t count) {
  return prefix->mixed(a, b, count);
}
inline size_t prefix_match(const int64_t* a, const int32_t* b, size_t count) {
  return prefix->mixed(b, a, count);
}

}  // namespace commlib::kernels
