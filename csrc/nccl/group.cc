#include "nccl/group.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "nccl/call_words.h"

namespace commlib::nccl {
namespace {

constexpr int kTickMs = 100;
constexpr int kWatchedTickMs = 5;
constexpr double kLeaveS = 2;  // for our threads, when the process ends

}  // namespace

Group::Group(const Settings& settings)
    : rank_(settings.rank),
      world_(settings.world),
      comm_(settings.comm),
      user_bytes_(settings.user_bytes),
      max_sms_(settings.max_sms),
      timeout_s_(settings.timeout_s),
      plan_(kParams,
            [](const Row& row, const Params& params) {
              if (!row.kernel.empty()) shape_of(params).check();
            }),
      fault_(
          settings.rank, settings.world, settings.timeout_s,
          [this](uint64_t what) { return describe(what); }, [this] { return order_.waiting(); }),
      deadline_(settings.comm, settings.rank, settings.timeout_s, fault_) {
  // The layout follows from it, so it has to be the same on every rank.
  const unsigned limit = max_sms_ ? max_sms_ : settings.multiprocessors;
  job_.tile_blocks = std::clamp<u32>(std::min(limit, settings.multiprocessors), 1, kMaxTileBlocks);
  job_.first = settings.first;
  max_blocks_ = std::min(job_.tile_blocks, grid_limit(settings.multiprocessors, settings.first));
  check(cuda().cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  if (!context_)
    fail("CommError", "this thread has no CUDA device; call torch.cuda.set_device() first");
  check(cuda().cuStreamCreate(&own_stream_, kStreamNonBlocking), "cuStreamCreate");
  CUdeviceptr scratch = 0;
  check(cuda().cuMemAlloc(&scratch, 256), "cuMemAlloc");
  scratch_ = reinterpret_cast<unsigned char*>(scratch);
}

Group::~Group() { stop_watching(); }

void Group::stop_watching() {
  if (ticks_) ticks_->stop();
  if (watch_) watch_->stop();
}

void Group::make_arena() {
  // What kernels keep there | what algorithms stage | tensors
  const u64 fixed = user_place(static_cast<u64>(world_), job_.tile_blocks);
  arena_ = std::make_unique<Arena>(comm_, rank_, world_, fixed + kStagedBytes, user_bytes_);
  no_arena_.clear();
}

void Group::start(const std::vector<int>& pids, uint64_t id, Builder builder) {
  record_ = std::make_unique<record::Record>(
      record::Identity{"nccl", id, rank_, world_, timeout_s_, pids});
  fault_.set_record(record_.get());
  kernels_.set_builder(std::move(builder));
  job_.report = fault_.open();
  job_.rank = rank_;
  job_.world = world_;
  job_.timeout_ns = static_cast<u64>(timeout_s_ * 1e9);
  if (has_arena()) {
    for (int r = 0; r < world_; ++r) job_.arena[r] = arena_->peer(r);
    staged_ = arena_->base() + user_place(static_cast<u64>(world_), job_.tile_blocks);
  }
  const auto failed = [this](const char* why) {
    fault_.end("CommError",
               text("rank ", rank_, ": a thread that watches over the communicator failed: ", why));
  };
  watch_ = std::make_unique<Watch>(pids);
  watch_->set_ticker([this] { deadline_.check_entered(); }, kTickMs);
  watch_->start(
      [this](int peer) {
        fault_.lost(peer);
        if (fault_.over()) deadline_.revoke();
      },
      failed);
  ticks_ = std::make_unique<Watch>(std::vector<int>{});
  ticks_->set_ticker([this] { tick(); }, kTickMs);
  ticks_->start([](int) {}, failed);
}

void Group::learn(const std::string& rows) {
  plan_.learn(rows);
  for (int i = static_cast<int>(natives_.size()); i < plan_.algorithms(); ++i) {
    const Row& row = plan_.row(i);
    const Algorithm* vendor = Algorithm::find(row.op, row.name);
    if (row.kernel.empty() == (vendor == nullptr))
      fail("CommError", name_of(row.op), " has no native ", row.name, " on nccl");
    const int kernel = vendor ? -1 : kernels_.add({row.op, row.kernel, row.name, row.reduces});
    const bool is_ffi = vendor && vendor->ffi && has_arena() && world_ > 1;
    natives_.push_back({vendor, kernel, is_ffi ? make_ffi(row, vendor->ffi) : nullptr});
    names_.push_back(record::Record::name(row.name));
  }
}

void Group::stamp(Stamps* stamps) {
  stamps_ = stamps;
  stamped_ = Function();
  kernels_.set_marked(stamps != nullptr);
}

void Group::tick() {
  const CUresult state = cuda().cuCtxSetCurrent(context_);
  if (state == kCudaErrorDeinitialized) return ticks_->stop();  // the process ends
  check(state, "cuCtxSetCurrent");
  const Relaxed relaxed;
  ticks_->set_period(record::Record::is_watched() ? kWatchedTickMs : kTickMs);
  if (has_arena()) {
    fault_.look_at_copy();  // of the last tick
    record_progress();
    fetch_progress();
  }
  look_at_ffi();
  if (fault_.over()) {
    fault_.tell();
    if (deadline_.owes_peers()) tell_peers(Ending::timeout);
    return deadline_.revoke();
  }
  if (deadline_.check_made()) return;
  tell_peers(Ending::timeout);
  deadline_.revoke();
}

bool Group::captures(CUstream stream) const {
  const ContextGuard guard(context_);
  return capture_of(stream) != 0;
}

bool Group::wait(CUstream stream, double wait_s) {
  const ContextGuard guard(context_);
  const timespec nap = {0, 20'000};
  const double start = seconds();
  CUresult state = kCudaErrorNotReady;
  for (int polls = 0; state == kCudaErrorNotReady && seconds() - start < wait_s; ++polls) {
    state = cuda().cuStreamQuery(stream);
    if (state == kCudaErrorNotReady && polls > 2000) nanosleep(&nap, nullptr);
  }
  if (state != kCudaErrorNotReady) check(state, "cuStreamQuery");
  fault_.alive();
  return state == kCudaSuccess;
}

void Group::inspect() {
  const ContextGuard guard(context_);
  fault_.alive();
  if (has_arena()) {
    const Relaxed relaxed;
    fetch_progress();
    check(cuda().cuStreamSynchronize(own_stream_), "cuStreamSynchronize");
    fault_.look_at_copy();
  }
  look_at_ffi();
  ncclResult_t async = ncclSuccess;
  if (nccl().ncclCommGetAsyncError(comm_, &async) == ncclSuccess && async != ncclSuccess &&
      async != ncclInProgress) {
    fault_.end("CommError",
               text("rank ", rank_, ": NCCL reports ", nccl().ncclGetErrorString(async), ": ",
                    nccl().ncclGetLastError(comm_)));
  }
  fault_.alive();
}

void Group::abort(const std::string& why) {
  if (fault_.over()) return;
  fault_.end("CommError", why);
  tell_peers(Ending::aborted);
}

void Group::tell_peers(Ending why) {
  if (!has_arena()) return;
  const ContextGuard guard(context_);
  const Relaxed relaxed;
  const u64 ended = ended_by(static_cast<u64>(rank_), why, kNobody);
  for (int r = 0; r < world_; ++r) {
    const auto to = arena_->peer(r) + offsetof(Control, ended);
    if (r != rank_)
      cuda().cuMemcpyHtoDAsync(device_pointer(to), &ended, sizeof(ended), own_stream_);
  }
  cuda().cuStreamSynchronize(own_stream_);
}

void Group::fetch_progress() {
  const auto from = arena_->base() + offsetof(Control, ended);
  cuda().cuMemcpyDtoHAsync(fault_.ended_copy(), device_pointer(from), sizeof(u64), own_stream_);
  const auto progress = arena_->base() + offsetof(Control, progress);
  const size_t bytes = offsetof(Progress, of_graph) + sizeof(u64) * (record_->graphs() + 1);
  cuda().cuMemcpyDtoHAsync(fault_.progress_copy(), device_pointer(progress), bytes, own_stream_);
}

// Of the last tick: it has been copied since.
void Group::record_progress() {
  const auto description = [this](const CallRecord& call) {
    return text(describe(call.what), " of ", counted(call.bytes, "byte"));
  };
  const Progress& seen = *fault_.progress_copy();
  record_->saw_gpu(seen, description(seen.current),
                   seen.has_left == kLeft ? description(seen.left) : "");
}

// The last kernel of all ranks: once its packets are here, no peer writes into this arena any more.
bool Group::close(double wait_s) {
  const ContextGuard guard(context_);
  if (record_) record_->close();
  // Ends by the deadlines of the kernels under way; the watch keeps those of NCCL's.
  bool together = !fault_.over() && cuda().cuCtxSynchronize() == kCudaSuccess && !fault_.over();
  stop_watching();
  fault_.close();
  if (together && has_arena() && world_ > 1) {
    Choice barrier{};
    barrier.algorithm = plan_.find_row(Op::barrier, "lsa_ll_exchange");
    if (barrier.algorithm < 0) return false;  // closed before it had its algorithms
    barrier.params = {1, 32, 8, 512};
    job_.timeout_ns = static_cast<u64>(wait_s * 1e9);
    launch(Call{Op::barrier, DType::u8}, barrier, own_stream_, 0);
    together = cuda().cuStreamSynchronize(own_stream_) == kCudaSuccess && !fault_.over();
  }
  if (!together) {
    engine_.settle(std::min(wait_s, kLeaveS));  // what they read is unmapped next
    return false;                               // freeing would wait for what may never end
  }
  if (arena_) arena_->close(true);
  cuda().cuMemFree(device_pointer(scratch_));
  order_.close();
  deadline_.close();
  engine_.close();
  cuda().cuStreamDestroy(own_stream_);
  fault_.release();
  return true;
}

void Group::abandon() {
  if (record_) record_->close();
  fault_.close();
  if (ticks_) ticks_->stop_within(kLeaveS);
  if (watch_) watch_->stop_within(kLeaveS);
  if (arena_) arena_->abandon();
}

}  // namespace commlib::nccl
