// An algorithm that is a function of tvm-ffi's, on one rank: its arguments, and the memory behind
// them. commlib/ffi.h says what it gets.
//
// Every rank has an area in its symmetric memory, all of them at one place:
//
//   signals | calls | addresses: of all rooms, of all signals | room
#pragma once

#include <vector>

#include "binding/dlpack.h"
#include "commlib/call.h"
#include "commlib/ffi.h"
#include "ffi/abi.h"

namespace commlib::ffi {

class Kernel {
 public:
  static constexpr size_t kCallsAt = kSignals * 8, kAddressesAt = kCallsAt + kCalls * 8,
                          kRoomAt = kAddressesAt + 2 * kMaxRanks * 8;

  // The area is at `at` of the memories of all ranks, which begin where this one reaches them.
  Kernel(void* function, binding::Device device, int rank,
         const std::vector<unsigned char*>& memories, size_t at, void* deadline);
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // What is to lie at kAddressesAt of this rank's area.
  const std::vector<int64_t>& addresses() const { return addresses_; }
  // Throws what the function raises, as a Failure.
  void run(const Call& call);

 private:
  struct View : binding::TensorFields {
    int64_t count, step;
  };
  void set(int value, void* data, int64_t count, DType dtype = DType::i64);

  enum Value { kOut, kIn, kPeers, kSignalWords, kRank, kSize, kCallWords, kDeadline, kValues };

  void* const function_;
  const binding::Device device_;
  const int64_t size_;
  std::vector<int64_t> addresses_;
  View views_[kValues];
  Any values_[kValues];
};

}  // namespace commlib::ffi
