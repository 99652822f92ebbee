// The compiled plan: which algorithm runs which operation at which size. Built once, read on every
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "commlib/call.h"

namespace commlib {

// `Choice` says what runs in a range: at least `uint64_t max_bytes`.
template <class Choice>
class PlanTable {
 public:
  static constexpr int kAny = -1;

  void clear() {
    lists_.clear();
    for (auto& entry : index_) entry = 0;
  }
  // Adds the ranges of one rule for every key it covers that no earlier rule has.
  void add(Op op, bool symmetric, int dtype, int redop, std::vector<Choice> ranges) {
    lists_.push_back(std::move(ranges));
    for (int d = 0; d < kDTypes; ++d) {
      for (int o = 0; o < kRedOps; ++o) {
        const bool covered = (dtype == kAny || dtype == d) && (redop == kAny || redop == o);
        uint16_t& entry = index_[at(op, symmetric, d, o)];
        if (covered && entry == 0) entry = static_cast<uint16_t>(lists_.size());
      }
    }
  }
  const Choice* find(Op op, bool symmetric, DType dtype, RedOp redop, size_t bytes) const {
    const uint16_t entry =
        index_[at(op, symmetric, static_cast<int>(dtype), static_cast<int>(redop))];
    if (entry == 0) return nullptr;
    for (const Choice& choice : lists_[entry - 1]) {
      if (bytes <= choice.max_bytes) return &choice;
    }
    return nullptr;
  }

 private:
  static size_t at(Op op, bool symmetric, int dtype, int redop) {
    return ((static_cast<size_t>(op) * 2 + symmetric) * kDTypes + dtype) * kRedOps + redop;
  }
  std::vector<std::vector<Choice>> lists_;
  uint16_t index_[kOps * 2 * kDTypes * kRedOps] = {};  // 0: no rule; else 1 + position in lists_
};

}  // namespace commlib
