// Waiting with a deadline: who polls asks `Patience` every so often, and leaves when it says so.
//
// A wait ends when the communicator has ended here, when the host or a peer aborts, or when
// `timeout_ns` have passed. The first to notice writes the report; all later waits and kernels
// leave at once. Nothing of this is on the path of a wait that is answered.
//
// The host's word lies behind PCIe, where thousands of waits would queue for it: one of all that
// wait on this GPU asks, every kAskNs, and tells the others by `ended`.
#pragma once

#include "device/marks.cuh"

namespace commlib {

constexpr long long kAskNs = 1'000'000;
constexpr int kAnnouncedPolls = 20'000;  // of a peer that waits, too, until it says in what: 20 ms

__device__ __forceinline__ Control* control_of(const Job& job, int rank) {
  return reinterpret_cast<Control*>(job.arena[rank]);
}

// This rank waits in this call: for the message of a peer that gives up.
__device__ __forceinline__ void announce(const Job& job) {
  CallRecord* current = &control_of(job, job.rank)->progress.current;
  st_relaxed_sys(&current->call, ld_relaxed_sys(&current->number) + 1);
  st_relaxed_sys(&current->what, job.what);
  st_relaxed_sys(&current->bytes, job.bytes);
  st_relaxed_sys(&current->graph, static_cast<u64>(job.graph));
}

// One call more is over, also in a graph; written once in the grid, in this rank's own Control.
__device__ __forceinline__ void count_call(const Job& job, Control* own) {
  if (blockIdx.x != 0) return;
  Progress* progress = &own->progress;
  add_relaxed(&progress->current.number, 1);
  if (job.graph != 0) add_relaxed(&progress->of_graph[job.graph], 1);
}

__device__ __forceinline__ u64 claim_sys(u64* p, u64 value) {
  u64 before;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], 0, %2;"
               : "=l"(before)
               : "l"(p), "l"(value)
               : "memory");
  return before;
}

__device__ __noinline__ void end_call(const Job& job, Ending kind, int peer) {
  if (claim_sys(&control_of(job, job.rank)->ended, static_cast<u64>(kind)) != 0) return;
  const auto current = [&](int rank) { return &control_of(job, rank)->progress.current; };
  // A word at a time: engine_pull has few registers.
  const auto copy = [&](CallRecord* to, int rank) {
    const u64* from = reinterpret_cast<const u64*>(current(rank));
#pragma unroll 1
    for (size_t i = 0; i < sizeof(CallRecord) / sizeof(u64); ++i)
      reinterpret_cast<u64*>(to)[i] = ld_relaxed_sys(from + i);
  };
  // A peer that came at the same time may not have said yet what it called.
  for (int polls = kind == Ending::mismatch ? kAnnouncedPolls : 0; polls > 0; --polls)
    if (ld_relaxed_sys(&current(peer)->call) == ld_relaxed_sys(&current(job.rank)->call)) break;
  Report* report = job.report;
  report->peer = peer;
  copy(&report->mine, job.rank);
  copy(&report->peer_call, peer);
  fence_sys();
  st_relaxed_sys(&report->kind, static_cast<u64>(kind));
  // All fail together. A rank that was stopped notifies nobody: the host stops the others too.
  if (kind == Ending::aborted) return;
  for (int r = 0; r < job.world; ++r)
    if (r != job.rank) claim_sys(&control_of(job, r)->ended, ended_by(job.rank, kind, peer));
}

// Whether the host ends the communicator; asked by the first thread when it is time again.
__device__ __forceinline__ bool aborted(const Job& job, u64 now) {
  u64* asked = &control_of(job, job.rank)->asked_ns;
  const u64 before = ld_relaxed_sys(asked);
  // `before` may be of a clock read later than `now`.
  return static_cast<long long>(now - before) >= kAskNs &&
         atomicCAS(asked, before, now) == before && ld_relaxed_sys(&job.report->abort) != 0;
}

// What this rank was in when the communicator ended: the first call that it left says so.
__device__ __noinline__ bool leave(const Job& job) {
  Progress* progress = &control_of(job, job.rank)->progress;
  if (claim_sys(&progress->has_left, kLeaving) != 0) return true;
  const u64 over = ld_relaxed_sys(&progress->current.number);
  progress->left = {over, over + 1, job.what, job.bytes, job.graph};
  progress->left_of_graph = ld_relaxed_sys(&progress->of_graph[job.graph]);
  fence_sys();
  st_relaxed_sys(&progress->has_left, kLeft);
  return true;
}

// Whether to stop waiting for `peer`, which began at `since`. `flag` is what it wrote last,
// `expected` what was hoped for: the same number with another signature is another call.
__device__ __noinline__ bool give_up(const Job& job, int peer, u64 flag, u64 expected, u64 since,
                                     u64 now) {
  Progress* progress = &control_of(job, job.rank)->progress;
  st_relaxed_sys(&progress->waits_for, static_cast<u64>(peer));
  st_relaxed_sys(&progress->waits_in, ld_relaxed_sys(&progress->current.number) + 1);
  const u64 ended = ld_relaxed_sys(&control_of(job, job.rank)->ended);
  if ((ended & 0xff) == static_cast<u64>(Ending::by_peer)) st_relaxed_sys(&job.report->kind, ended);
  if (ended != 0) return leave(job);
  Ending why = Ending::none;
  if (flag != expected && (flag ^ expected) >> kSignatureBits == 0) why = Ending::mismatch;
  if (now >= since + job.timeout_ns) why = Ending::timeout;
  if (aborted(job, now)) why = Ending::aborted;
  if (why == Ending::none) return false;
  end_call(job, why, peer);
  return leave(job);
}

// Counts polls of one wait; its clock starts when it runs out for the first time. A peer that has
// come may itself wait for one that has not: who waits for the latter is to say so, and is first.
class Patience {
 public:
  __device__ __forceinline__ explicit Patience(bool has_come = false) : has_come_(has_come) {}
  // The first question comes early: calls that were queued when all ended leave in microseconds.
  __device__ __forceinline__ bool runs_out() { return (++polls_ & 1023) == 64; }
  __device__ __forceinline__ bool gives_up(const Job& job, int peer, u64 flag, u64 expected) {
    // At first only whether all is over. The clock, and the stores of every warp, would take so
    // long that the peers, who wait for this rank in the next call, come to this question in turn.
    if (since_ == 0 && ld_relaxed_sys(&control_of(job, job.rank)->ended) == 0) {
      since_ = kAsked;
      return false;
    }
    const u64 now = clock_ns();
    if (since_ <= kAsked) {
      since_ = has_come_ ? now + kGraceNs : now;
      announce(job);
    }
    return give_up(job, peer, flag, expected, since_, now);
  }

 private:
  static constexpr u64 kAsked = 1;
  static constexpr u64 kGraceNs = 50'000'000;
  bool has_come_;
  u32 polls_ = 0;
  u64 since_ = 0;  // 0: it has not asked; kAsked: once
};

}  // namespace commlib
