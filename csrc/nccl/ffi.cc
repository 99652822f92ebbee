// Algorithms that are functions of tvm-ffi's, on GPUs.
#include "ffi/kernel.h"
#include "nccl/group.h"

namespace commlib::nccl {

static_assert(offsetof(Report, timeout_ns) - offsetof(Report, abort) ==
                      offsetof(ffi::Deadline, timeout_ns) &&
                  offsetof(Report, gave_up) - offsetof(Report, abort) ==
                      offsetof(ffi::Deadline, gave_up),
              "a Deadline begins at Report::abort");

// Every rank adds the same ones in the same order, and makes calls once all have.
std::shared_ptr<ffi::Kernel> Group::make_ffi(const Row& row, void* function) {
  auto* const area =
      static_cast<unsigned char*>(arena_->allocate(ffi::Kernel::kRoomAt + row.room_bytes));
  auto made = std::make_shared<ffi::Kernel>(
      function, binding::Device{binding::kCuda, arena_->device()}, rank_, arena_->peers(),
      static_cast<size_t>(area - arena_->base()), &job_.report->abort);
  const auto& addresses = made->addresses();
  check(cuda().cuMemsetD8Async(device_pointer(area), 0, ffi::Kernel::kRoomAt, own_stream_),
        "cuMemsetD8Async");
  check(cuda().cuMemcpyHtoDAsync(device_pointer(area + ffi::Kernel::kAddressesAt), addresses.data(),
                                 addresses.size() * sizeof(int64_t), own_stream_),
        "cuMemcpyHtoDAsync");
  check(cuda().cuStreamSynchronize(own_stream_), "zeroing signals");
  return made;
}

void Group::run_ffi(const Call& call, int id, CUstream stream, uint64_t capture) {
  const Row& row = plan_.row(id);
  order_.before(stream, capture, {row.sms, kClusterNeeds}, false);
  deadline_.enter(call, row.name.c_str());
  void* const before = ffi::exchange_stream(binding::kCuda, arena_->device(), stream);
  std::string failed;
  try {
    natives_[static_cast<size_t>(id)].ffi->run(call);
  } catch (const Failure& failure) {
    failed = text(failure.kind(), ": ", failure.what());
  }
  ffi::exchange_stream(binding::kCuda, arena_->device(), before);
  deadline_.leave(capture == 0 && failed.empty(), stream);
  if (!failed.empty()) {
    abort(text(name_of(call.op), " by ", row.name, " failed on rank ", rank_, ": ", failed));
    fault_.alive();
  }
  order_.after(stream, capture);
}

// Ends the communicator where a function's wait was in vain.
void Group::look_at_ffi() {
  const int peer = fault_.missed();
  if (peer < 0 || fault_.over()) return;
  std::string names;
  for (size_t id = 0; id < natives_.size(); ++id) {
    const Row& row = plan_.row(static_cast<int>(id));
    if (natives_[id].ffi)
      names += text(names.empty() ? "" : " or ", name_of(row.op), " by ", row.name);
  }
  fault_.end("CommTimeout",
             text("rank ", rank_, ": ", names, " waited ", timeout_s_, " s for rank ", peer,
                  ", which did not come. Make the same calls on every rank, ",
                  "or raise the timeout (timeout_s=)"));
  tell_peers(Ending::timeout);
}

}  // namespace commlib::nccl
