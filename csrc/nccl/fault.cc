#include "nccl/fault.h"

#include <cstring>

namespace commlib::nccl {

Fault::Fault(int rank, int world, double timeout_s, std::function<std::string(uint64_t)> describe,
             std::function<std::string()> waiting)
    : rank_(rank),
      timeout_s_(timeout_s),
      describe_(std::move(describe)),
      waiting_(std::move(waiting)),
      dead_(static_cast<size_t>(world)) {}

void Fault::release() {
  if (report_) cuda().cuMemFreeHost(report_);
  report_ = nullptr;
}

Report* Fault::open() {
  void* host = nullptr;
  check(cuda().cuMemHostAlloc(&host, sizeof(Report), kHostAllocPortable | kHostAllocDeviceMap),
        "cuMemHostAlloc");
  report_ = static_cast<Report*>(host);
  std::memset(host, 0, sizeof(Report));
  report_->timeout_ns = static_cast<u64>(timeout_s_ * 1e9);
  CUdeviceptr device = 0;
  check(cuda().cuMemHostGetDevicePointer(&device, host, 0), "cuMemHostGetDevicePointer");
  return reinterpret_cast<Report*>(device);
}

void Fault::end(const char* kind, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_.load()) return;
  kind_ = kind;
  text_ = text;
  if (record_) record_->ended(kind, text.c_str());
  ended_.store(true, std::memory_order_release);
  if (report_) static_cast<volatile Report*>(report_)->abort = 1;
}

void Fault::lost(int peer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    dead_[static_cast<size_t>(peer)] = true;
  }
  if (!closed_)
    end("PeerLost", text("rank ", rank_, ": the process of rank ", peer,
                         " ended, so its GPU no longer takes part. Call close(), then init() with "
                         "the remaining ranks"));
}

void Fault::tell() {
  if (ended_.load(std::memory_order_acquire)) return;
  const char* kind = nullptr;
  const std::string reason = reason_of(*report_, &kind);
  end(kind, reason);
}

void Fault::raise() {
  tell();
  explain();
  const std::lock_guard<std::mutex> lock(mutex_);
  throw Failure(kind_, text_);
}

// Once, for the first error that is raised; without the lock, as it takes the interpreter's.
void Fault::explain() {
  std::string kind;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (explained_ || !record_ || !record::explain) return;
    explained_ = true;
    kind = kind_;
  }
  const std::string more = record::explain(record_->id(), kind.c_str());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!more.empty()) text_ += "\n" + more;
}

std::string Fault::reason_of(const Report& report, const char** kind) const {
  const auto record = [&](const CallRecord& of) {
    return text(describe_(of.what), " of ", counted(of.bytes, "byte"), " (call ", of.call, ")");
  };
  const bool gone = report.peer < dead_.size() && dead_[report.peer];
  if ((report.kind & 0xff) == static_cast<u64>(Ending::by_peer))
    return reason_of_peer(report.kind, kind);
  switch (static_cast<Ending>(report.kind)) {
    case Ending::timeout: {
      *kind = gone ? "PeerLost" : "CommTimeout";
      const std::string others = gone ? "" : waiting_();
      return text(
          "rank ", rank_, ": ", record(report.mine), " waited ", timeout_s_, " s for rank ",
          report.peer, ", which ", gone ? "died" : "did not come", "; it has finished ",
          counted(report.peer_call.number, "call"),
          report.peer_call.what ? text(" and waited last in ", record(report.peer_call)) : "",
          others.empty() ? ""
                         : text(". The call is of ", others, ". If rank ", report.peer,
                                " used these communicators in another order, the ranks "
                                "wait for each other; use communicators in the same "
                                "order on every rank"),
          ". Make the same calls on every rank, or raise the timeout (timeout_s=)");
    }
    case Ending::mismatch:
      *kind = "CommError";
      return text(
          "ranks disagree: rank ", rank_, " called ", record(report.mine), ", rank ", report.peer,
          " called something else",
          report.peer_call.what ? text(", last seen in ", record(report.peer_call)) : "",
          "; make the same calls with the same plan, dtype, size and max_sms on every rank");
    case Ending::misplaced:
      *kind = "CommError";
      return text(
          "rank ", rank_, ": ", record(report.mine), " found the input of rank ", report.peer,
          " at another place in symmetric memory than its own; make ",
          "symmetric tensors of the same sizes in the same order on every rank, and call in ",
          "place on all ranks or on none");
    default:
      *kind = "CommError";
      return text("rank ", rank_, ": aborted in ", record(report.mine));
  }
}

void Fault::look_at_copy() {
  const u64 ended = static_cast<volatile Report*>(report_)->ended;
  if ((ended & 0xff) != static_cast<u64>(Ending::by_peer)) return;
  const char* kind = nullptr;
  const std::string reason = reason_of_peer(ended, &kind);
  end(kind, reason);
}

std::string Fault::reason_of_peer(uint64_t ended, const char** kind) const {
  const uint64_t rank = ended >> 16 & 0xff, awaited = ended >> 24 & 0xff;
  *kind = "CommError";
  switch (static_cast<Ending>(ended >> 8 & 0xff)) {
    case Ending::timeout:
      *kind = "CommTimeout";
      if (awaited == kNobody) {
        return text("rank ", rank_, ": the communicator has ended, because an NCCL call did not ",
                    "finish within ", timeout_s_, " s on rank ", rank);
      }
      return text("rank ", rank_, ": the communicator has ended, because rank ", rank, " waited ",
                  timeout_s_, " s for rank ", awaited, ", which did not come in time");
    case Ending::mismatch:
      return text(
          "ranks disagree: rank ", rank, " found that rank ", awaited,
          " called something else, and told rank ", rank_,
          "; make the same calls with the same plan, dtype, size and max_sms on every rank");
    case Ending::misplaced:
      return text("rank ", rank_, ": the communicator has ended, because rank ", rank,
                  " found the input of rank ", awaited,
                  " at another place in symmetric memory than its own");
    default:
      return text("rank ", rank_, ": rank ", rank, " aborted the communicator");
  }
}

}  // namespace commlib::nccl
