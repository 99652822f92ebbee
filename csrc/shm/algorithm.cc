#include "shm/algorithm.h"

#include <cstring>
#include <vector>

namespace commlib::shm {
namespace {

// A function's static: the files that register run their initialisers in any order.
std::vector<Algorithm>& table() {
  static std::vector<Algorithm> algorithms;
  return algorithms;
}

}  // namespace

int register_algorithm(const Algorithm& algorithm) {
  table().push_back(algorithm);
  return static_cast<int>(table().size()) - 1;
}

const Algorithm& algorithm(int id) { return table()[id]; }

int num_algorithms() { return static_cast<int>(table().size()); }

int find_algorithm(Op op, const char* name) {
  for (int id = 0; id < num_algorithms(); ++id) {
    if (table()[id].op == op && !std::strcmp(table()[id].name, name)) return id;
  }
  return -1;
}

}  // namespace commlib::shm
