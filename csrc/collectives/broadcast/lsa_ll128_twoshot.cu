// the root pushes part p to rank p | each rank pushes its part to all | take theirs; lines of 120
// bytes and their flag
//
// The root sends 2 (n - 1) / n times the tensor instead of n - 1 times.
#include "device/scatter.cuh"

namespace commlib {

template <int N>
__device__ __forceinline__ int root_of(const Moves& moves, int rank) {
  int root = rank;
#pragma unroll
  for (int r = 0; r < N; ++r)
    if (moves.take_bytes[r] > 0) root = r;
  return root;
}

// A step's part has the number before that of the results, and is taken from the root alone: a rank
// that takes a peer's result knows that the peer has taken its part.
template <class P, int N>
__device__ __forceinline__ void broadcast_in_parts(const Job& job, const Moves& moves) {
  Channel<P, N> channel(job);
  const int root = root_of<N>(moves, job.rank);
  const bool is_root = root == job.rank;
  const u64 part_bytes = ((job.bytes + N - 1) / N + 15) / 16 * 16;
  const Steps steps = channel.steps(part_bytes);
  const TensorOf<P> x(is_root ? job.in : job.out, job.bytes), out(job.out, job.bytes);
  const TensorOf<P> my_part = x.part_of(job.rank, part_bytes);
  channel.begin();
  const auto send_parts = [&](int k) {
    mark(Phase::publish);
#pragma unroll
    for (int p = 1; p < N; ++p)
      channel.send(p, 2 * k, Words<P>::load(x.part_of(channel.after(p), part_bytes), steps[k]));
  };
  if (is_root && steps.has(0)) send_parts(0);
  int k = 0;
#pragma unroll 1
  for (; steps.has(k); ++k) {
    Words<P> mine[1][1];
    if (is_root) {
      mine[0][0] = Words<P>::load(my_part, steps[k]);
    } else {
      const auto comes = [](int, int) { return true; };
      if (!channel.receive(2 * k, mine, comes, root - (root > job.rank))) return;
    }
    channel.send_all(2 * k + 1, mine[0][0]);
    if (is_root && steps.has(k + 1)) send_parts(k + 1);
    if (!is_root) mine[0][0].store(my_part, steps[k]);
    if (is_root) {
      Words<P> heard[1][kPeers<N>];  // what the root has; that it comes says what peers have taken
      if (!channel.receive(2 * k + 1, heard)) return;
    } else if (!take_parts<1>(channel, 2 * k + 1, k, steps, out, part_bytes)) {
      return;
    }
    channel.let_next();
  }
  channel.close(2 * k);
}

template <int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll128_twoshot(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  if (whole_pairs(job))
    broadcast_in_parts<WholeLl128, N>(job, moves);
  else
    broadcast_in_parts<Ll128, N>(job, moves);
}

}  // namespace commlib
