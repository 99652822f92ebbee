// Algorithms that are functions of tvm-ffi's, on shared memory.
//
//   number and announce the call | the function, whose waits see peers' announcements | compare the
//   others'
#include <cstring>
#include <exception>
#include <map>

#include "ffi/kernel.h"
#include "shm/staged.h"

namespace commlib::shm {

struct Group::Ffi : ffi::Deadline {
  Group& group;
  std::map<const Row*, ffi::Kernel> kernels;
  std::exception_ptr failure;  // of a wait

  explicit Ffi(Group& group) : ffi::Deadline{0, 0, 0, await_word, ring}, group(group) {}

  static int await_word(ffi::Deadline* self, const uint64_t* word, uint64_t value,
                        int peer) noexcept {
    auto& mine = *static_cast<Ffi*>(self);
    try {
      mine.group.await_signal(peer, *reinterpret_cast<const Counter*>(word), value);
      return 1;
    } catch (...) {
      mine.failure = std::current_exception();
      return 0;
    }
  }
  static void ring(ffi::Deadline* self) noexcept { static_cast<Ffi*>(self)->group.waiter().ring(); }
};

void Group::add_ffi(const Row& row, void* function) {
  if (!ffi_) ffi_ = std::make_shared<Ffi>(*this);
  std::vector<unsigned char*> arenas;
  for (int r = 0; r < world(); ++r) arenas.push_back(segment().arena(r));
  auto* const area =
      static_cast<unsigned char*>(arena().allocate(ffi::Kernel::kRoomAt + row.room_bytes));
  const auto at = static_cast<size_t>(area - segment().arena(rank()));
  const auto [made, _] =
      ffi_->kernels.try_emplace(&row, function, binding::Device{binding::kCpu, 0}, rank(), arenas,
                                at, static_cast<ffi::Deadline*>(ffi_.get()));
  const auto& addresses = made->second.addresses();
  std::memcpy(area + ffi::Kernel::kAddressesAt, addresses.data(),
              addresses.size() * sizeof(int64_t));
}

void Group::run_ffi(const Call& call) {
  const Row& row = plan_.row(static_cast<int>(running_));
  ffi_->failure = nullptr;
  begin(call);
  publish();
  try {
    ffi_->kernels.at(&row).run(call);
  } catch (const Failure& failure) {
    waiter().end("CommError", text(name_of(call.op), " by ", row.name, " failed on rank ", rank(),
                                   ": ", failure.kind(), ": ", failure.what()));
  }
  if (ffi_->failure) std::rethrow_exception(ffi_->failure);
  for_each_peer(*this, [&](int r) { await_line(r); });
  finish(true);
}

}  // namespace commlib::shm
