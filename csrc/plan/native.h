// The native halves of a backend's algorithms: each registers itself from the file it stands in.
#pragma once

#include <deque>
#include <string>

#include "commlib/call.h"

namespace commlib {

template <class Run>
struct Native {
  Op op;
  const char* name;
  Run run;
  void* ffi = nullptr;  // a function of tvm-ffi's: what `run` calls then

  // A function's static: the files that register run their initialisers in any order.
  static std::deque<Native>& all() {
    static std::deque<Native> natives;
    return natives;
  }
  static const Native* find(Op op, const std::string& name) {  // null: none
    for (const Native& known : all()) {
      if (known.op == op && known.name == name) return &known;
    }
    return nullptr;
  }
};

// `Algorithm` is the backend's Native; op and name are those of the row in commlib/collectives.
#define COMMLIB_NATIVE(Algorithm, op, name, function)            \
  [[maybe_unused]] static const auto& registered_##op##_##name = \
      Algorithm::all().emplace_back(Algorithm{::commlib::Op::op, #name, function})

}  // namespace commlib
