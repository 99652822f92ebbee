#include "nccl/group.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "nccl/call_words.h"
#include "nccl/moves.h"
#include "nccl/recorded.h"

namespace commlib::nccl {
namespace {

constexpr int kTickMs = 100;
constexpr int kWatchedTickMs = 5;
constexpr double kLeaveS = 2;  // for our threads, when the process ends

// Element type and reduction as kernels know them: a bool is a byte, a complex number two floats.
struct Elements {
  DType dtype;
  RedOp redop;

  explicit Elements(const Call& call) : dtype(call.dtype), redop(call.redop) {
    if (dtype == DType::boolean) {
      dtype = DType::u8;
      if (redop == RedOp::sum || redop == RedOp::max) redop = RedOp::bor;
      if (redop == RedOp::prod || redop == RedOp::min) redop = RedOp::band;
    }
    if (dtype == DType::c64) dtype = DType::f32;
    if (dtype == DType::c128) dtype = DType::f64;
  }
};

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
  job_.tile_blocks =
      static_cast<u32>(std::clamp<u64>(settings.multiprocessors, 1, kMostTileBlocks));
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
      record::Identity{"nccl", id, rank_, world_, timeout_s_, pids, {}});
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
    natives_.push_back({vendor, kernel});
    names_.push_back(record::Record::name(row.name));
  }
}

std::string Group::choice(Mode mode, const Call& call, size_t bytes, bool symmetric) const {
  const Choice* found =
      plan_.find(mode, symmetric, call, differs_by_rank(call.op) ? kAnyBytes : bytes);
  return found ? plan_.row(found->algorithm).name : "";
}

void Group::stamp(Stamps* stamps) {
  stamps_ = stamps;
  stamped_ = Function();
  kernels_.set_marked(stamps != nullptr);
}

void Group::run(const Call& call, size_t plan_bytes, bool symmetric, CUstream stream) {
  const During planning(stamps_, Phase::plan);
  fault_.alive();
  if (plan_bytes == 0 && call.op != Op::barrier) return;
  if (world_ == 1 && call.rows)
    return finish_rows(call, own_rows_kernel(call), call.in, call.rows->rows.in_stride_bytes,
                       stream);
  if (world_ == 1) {
    if (call.out == call.in || call.bytes() == 0) return;
    return check(cuda().cuMemcpyDtoDAsync(device_pointer(call.out), device_pointer(call.in),
                                          call.bytes(), stream),
                 "cuMemcpyDtoDAsync");
  }
  const uint64_t capture = capture_of(stream);
  const Mode mode = capture ? Mode::graph : Mode::eager;
  // The communicator takes no more than tile_blocks for any call.
  const bool limited = call.max_sms && call.max_sms < job_.tile_blocks;
  const size_t bytes = differs_by_rank(call.op) ? kAnyBytes : plan_bytes;
  const Choice* choice = limited ? plan_.find_within(mode, symmetric, call, bytes)
                                 : plan_.find(mode, symmetric, call, bytes);
  if (!choice && limited) fail_unlimited(call, plan_.find(mode, symmetric, call, bytes));
  if (!choice) fail_unplanned(call, plan_bytes);
  enter(stamps_, Phase::launch);
  const Recorded recorded(*this, call, *choice, stream, capture);
  if (call.rows) {
    run_rows(call, *choice, stream, capture);
  } else if (plan_.row(choice->algorithm).engine) {
    pull(call, *choice, stream, capture);
  } else if (natives_[static_cast<size_t>(choice->algorithm)].vendor) {
    vendor(call, choice->algorithm, symmetric, stream, capture);
  } else {
    launch(call, *choice, stream, capture);
  }
}

void Group::fail_unplanned(const Call& call, size_t plan_bytes) const {
  fail("Unsupported", "the plan has nothing for ", name_of(call.op), " of ", plan_bytes,
       " bytes of ", name_of(call.dtype), plan_.reduces(call.op) ? " " : "",
       plan_.reduces(call.op) ? name_of(call.redop) : "", " on nccl",
       no_arena_.empty() ? "" : ", where there is no symmetric memory: ", no_arena_);
}

// Of a call that runs without max_sms; `usual` is what would run.
void Group::fail_unlimited(const Call& call, const Choice* usual) const {
  if (!usual) return;
  const Row& row = plan_.row(usual->algorithm);
  fail("Unsupported", "max_sms is ", call.max_sms, ", but ", name_of(call.op), " runs ", row.name,
       " here, which takes up to ", row.sms,
       " multiprocessors, and the plan has nothing that takes fewer; leave max_sms out, or limit "
       "all calls of the communicator: commlib.init(max_sms=",
       call.max_sms, ")");
}

std::string Group::describe(uint64_t what) const {
  if (what == 0) return "nothing";
  const auto op = static_cast<Op>(what & 0xff);
  std::string words = name_of(op);
  if (op != Op::barrier) words += text(" ", name_of(static_cast<DType>(what >> 8 & 0xff)));
  if (plan_.reduces(op)) words += text(" ", name_of(static_cast<RedOp>(what >> 16 & 0xff)));
  words += " by " + plan_.row(static_cast<int>(what >> 32 & 0xffffff)).name;
  return what & kInner ? words + " (made inside another call)" : words;
}

// All blocks must be on the GPU at once: they wait for peers.
unsigned Group::most_blocks(const Shape& shape, const Call& call) const {
  const unsigned most = std::min(shape.blocks, job_.tile_blocks);
  return call.max_sms ? std::min(most, call.max_sms) : most;
}

void Group::launch(const Call& call, const Choice& choice, CUstream stream, uint64_t capture) {
  const int kernel = natives_[static_cast<size_t>(choice.algorithm)].kernel;
  const Shape shape = shape_of(choice.params);
  const Elements elements(call);
  const auto& instance = kernels_.get(kernel, elements.dtype, elements.redop);
  const unsigned threads = std::min(shape.threads, instance.max_threads);
  Job job = job_;
  job.in = call.in;
  job.out = call.out;
  job.bytes = call.bytes();
  job.what = pack(call, choice.algorithm, inner_);
  Moves moves;
  u64 share = job.bytes;  // of the work that the blocks deal out
  if (call.op != Op::all_reduce) {
    moves = moves_of(call, rank_, world_);
    share = moves.longest;
  }
  const u64 wanted = share / (u64{threads} * shape.grain_bytes) + 1;
  const u64 most = most_blocks(shape, call);
  // Where ranks know their own sizes alone, nothing they must agree on follows from these.
  const bool alike = !differs_by_rank(call.op);
  const auto blocks = static_cast<unsigned>(alike ? std::min(wanted, most) : most);
  job.redop = static_cast<int>(elements.redop);
  job.tile_bytes = shape.tile_bytes;
  job.signature = Signature(alike ? job.what : static_cast<uint64_t>(call.op),
                            alike ? job.bytes : 0, call.detail, blocks, threads, shape.tile_bytes)
                      .bits();
  const bool lets_next_start =
      instance.shared_tiles + instance.shared_slots == 0 && threads <= kSmallBlock;
  launch_in_order(instance, job, &moves, {blocks, threads}, lets_next_start, stream, capture);
}

void Group::launch_in_order(const Kernels::Instance& instance, Job& job, const void* more,
                            const Size& size, bool lets_next_start, CUstream stream,
                            uint64_t capture) {
  job.graph = record_->count_kernel(capture);
  const Grid grid = Kernels::grid_of(instance, job, size.blocks, size.threads);
  order_.before(stream, capture,
                {instance.handle, size.blocks, size.threads, grid.shared_bytes, lets_next_start,
                 instance.cluster_blocks});
  Kernels::launch(instance, job, more, grid, stream);
  order_.after(stream, capture);
  if (stamps_) stamped_ = instance;
}

void Group::vendor(const Call& call, int id, bool symmetric, CUstream stream, uint64_t capture) {
  const Algorithm& chosen = *natives_[static_cast<size_t>(id)].vendor;
  order_.before(stream, capture, Launch());
  deadline_.enter(call, chosen.name);
  try {
    if (symmetric && !plan_.row(id).needs_arena && !symmetric_kernels_wait()) settle(stream);
    chosen.run(*this, call, stream);
  } catch (...) {
    deadline_.leave(false, stream);
    throw;
  }
  deadline_.leave(capture == 0, stream);
  order_.after(stream, capture);
}

// A few bytes copied by the driver: they begin when the kernel ahead is done and its writes can be
// read, and whatever comes next begins after them.
void Group::settle(CUstream stream) {
  constexpr size_t kWord = 8;
  check(cuda().cuMemcpyDtoDAsync(device_pointer(scratch_), device_pointer(scratch_ + kWord), kWord,
                                 stream),
        "cuMemcpyDtoDAsync");
}

void Group::message(const Call& call, int peer, bool sends, CUstream stream) {
  Call directed = call;
  (sends ? directed.root : directed.source) = peer;
  if (sends) {
    directed.out = nullptr;
  } else {
    directed.in = nullptr;
  }
  run(directed, call.bytes(), false, stream);
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
  if (fault_.over()) {
    fault_.tell();
    if (deadline_.owes_peers()) tell_peers(Ending::timeout);
    return deadline_.revoke();
  }
  if (deadline_.check_made()) return;
  tell_peers(Ending::timeout);
  deadline_.revoke();
}

bool Group::wait(CUstream stream, double wait_s) {
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
  fault_.alive();
  if (has_arena()) {
    const Relaxed relaxed;
    fetch_progress();
    check(cuda().cuStreamSynchronize(own_stream_), "cuStreamSynchronize");
    fault_.look_at_copy();
  }
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
  const auto words = [this](const CallRecord& call) {
    return text(describe(call.what), " of ", call.bytes, " bytes");
  };
  const Progress& seen = *fault_.progress_copy();
  record_->saw_gpu(seen, words(seen.current), seen.has_left ? words(seen.left) : "");
}

// The last kernel of all ranks: once its packets are here, no peer writes into this arena any more.
bool Group::close(double wait_s) {
  if (record_) record_->close();
  // Ends by the deadlines of the kernels under way; the watch keeps those of NCCL's.
  bool together = !fault_.over() && cuda().cuCtxSynchronize() == kCudaSuccess && !fault_.over();
  stop_watching();
  fault_.close();
  if (together && has_arena() && world_ > 1) {
    Choice barrier{};
    barrier.algorithm = plan_.find_row(Op::barrier, "lsa_ll_exchange");
    if (barrier.algorithm < 0) return false;  // closed before it was told what there is
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
