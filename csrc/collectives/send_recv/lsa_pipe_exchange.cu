// send a short message | exchange long ones | take a short one; packets into mailboxes, or tiles
// through pipes
//
// A message is short or long for both of its ranks, since both know its length. Short ones wait for
// nothing but a full mailbox before the long ones, and hold up nobody behind them.
#include "device/pipe_exchange.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPipeThreads, 1)
    lsa_pipe_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  __shared__ PipeBoard board;
  const Mailboxes<N> mail(job);
  const auto is_short = [&](int peer, u64 bytes) {
    return peer != job.rank && bytes > 0 && bytes <= moves.packet_bytes;
  };
  const bool in_tiles = job.tile_bytes > 0;
  if (in_tiles) {
    wait_for_stream();
  } else {
    begin_marked();
    if (lets_next_start(job, gridDim.x)) let_next_start();
  }
  int target = job.rank, source = job.rank;  // of a short message; this rank itself: none
#pragma unroll
  for (int r = 0; r < N; ++r) {
    if (is_short(r, moves.send_bytes[r])) target = r;
    if (is_short(r, moves.take_bytes[r])) source = r;
  }
  if (target != job.rank && !mail.send(target, moves.send_bytes[target], moves.max_blocks)) return;
  if (in_tiles) {
    const auto bytes = [&](Way way, Stage stage, int peer) {
      const u64 all = way == kWritten ? moves.send_bytes[peer] : moves.take_bytes[peer];
      return stage == kGather || is_short(peer, all) ? u64{0} : all;
    };
    exchange(Pipes<N>(job, &board, job.tile_bytes, bytes, kMessages), job, moves);
  }
  mark(Phase::wait);
  if (source != job.rank) mail.take(source, moves.take_bytes[source], moves.max_blocks);
  mark(Phase::over);
}

}  // namespace commlib
