#include "nccl/algorithm.h"

#include <deque>

namespace commlib::nccl {
namespace {

// A function's static: the files that register run their initialisers in any order.
std::deque<Algorithm>& table() {
  static std::deque<Algorithm> algorithms;
  return algorithms;
}

}  // namespace

int register_algorithm(const Algorithm& algorithm) {
  table().push_back(algorithm);
  return static_cast<int>(table().size());
}

const Algorithm* find_algorithm(Op op, const std::string& name) {
  for (const Algorithm& known : table()) {
    if (known.op == op && known.name == name) return &known;
  }
  return nullptr;
}

}  // namespace commlib::nccl
