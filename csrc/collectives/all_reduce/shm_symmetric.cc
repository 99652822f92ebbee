// say where my tensors are | reduce my slice of everyone's input into everyone's output | wait
// until all have
//
// Layout: rank r owns elements [r*n/W, (r+1)*n/W). Requirements: input and output in the arena on
// every rank; when an announcement says otherwise, all ranks run what the plan names for plain
// tensors. Cost per rank: read n, write n; two hand-overs, no staging. In place: slice r is read
// and written only by rank r.
#include "shm/algorithm.h"
#include "shm/staged.h"

namespace commlib::shm {
namespace {

constexpr size_t kBlockBytes = 16 << 10;  // reduced, then copied to the peers while it is in L1

bool all_are_symmetric(Group& group) {
  bool all = true;
  for_each_peer(group, [&](int r) {
    all = all & (static_cast<Source>(group.await_line(r).what.source) == Source::symmetric_if_all);
  });
  return all;
}

void reduce_slice(Group& group, const Call& call) {
  const int world = group.world();
  const int me = group.rank();
  const size_t per_rank = round_up((call.bytes() + world - 1) / world, kCacheLine);
  const size_t first = std::min(call.bytes(), me * per_rank);
  const size_t last = std::min(call.bytes(), first + per_rank);
  const unsigned char* in[kMaxRanks];
  unsigned char* out[kMaxRanks];
  for_each_peer(group, [&](int r) {
    in[r] = group.offered(r, group.line_of(r).in_offset, call.bytes());
    out[r] = group.offered(r, group.line_of(r).out_and_history & kOutBits, call.bytes());
  });
  in[me] = call.in;
  for (size_t at = first; at < last; at += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, last - at);
    const void* sources[kMaxRanks];
    for (int r = 0; r < world; ++r) sources[r] = in[r] + at;
    group.reduce(call, call.out + at, sources, bytes / call.element());
    for_each_peer(group, [&](int r) { std::memcpy(out[r] + at, call.out + at, bytes); });
  }
}

void all_reduce_symmetric(Group& group, const Call& call) {
  group.begin(call);
  group.publish(Source::symmetric_if_all);
  if (!all_are_symmetric(group)) return group.run_plain(call);
  reduce_slice(group, call);
  group.finish_together();
}

COMMLIB_SHM_ALGORITHM(all_reduce, shm_symmetric, all_reduce_symmetric);

}  // namespace
}  // namespace commlib::shm
