// An algorithm as its row in commlib/collectives describes it.
#pragma once

#include <array>
#include <bitset>
#include <string>
#include <vector>

#include "commlib/call.h"

namespace commlib {

constexpr int kMaxParams = 5;  // of an algorithm
// In the order in which the backend names those that it knows.
using Params = std::array<uint32_t, kMaxParams>;
using ParamNames = std::vector<const char*>;
// As the last of the names: stands for all that are not named, whose values nobody asks for.
constexpr char kOthers = '*';

constexpr int kReductions = kDTypes * kRedOps;
inline size_t reduction(DType dtype, RedOp redop) {
  return static_cast<size_t>(dtype) * kRedOps + static_cast<size_t>(redop);
}

struct Row {
  Op op;
  std::string name;
  bool symmetric;      // needs its tensors in the arena
  bool needs_arena;    // needs symmetric memory, wherever its tensors lie
  std::string kernel;  // its device code below csrc; empty: it is native code
  bool reduces;        // the collective reduces: device code is compiled for a type and a reduction
  bool rooted;         // the collective has a root
  bool composed;       // of another call, and its device code behind that
  bool engine;         // copy engines move its data: its device code only says when
  uint64_t room_bytes;  // of a function of tvm-ffi's, for each rank
  uint32_t sms;         // multiprocessors that it takes at most, where it has no parameter "blocks"
  std::bitset<kReductions> serves;  // which types and reductions it runs
  Params defaults{};
};

// The rows of a text: a line "algorithm" each, then those of what it serves and of its parameters.
std::vector<Row> read_rows(const std::string& text, const ParamNames& params);

// Where a parameter lies in Params; throws ValueError for one that the backend does not know.
size_t param_named(const std::string& name, const ParamNames& params);
// A code by its name; "*" stands for all: -1.
int dtype_named(const std::string& name);
int redop_named(const std::string& name);

}  // namespace commlib
