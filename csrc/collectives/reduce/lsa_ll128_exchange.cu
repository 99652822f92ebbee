// push to each peer its block | reduce mine in rank order; lines of 120 bytes and their flag
//
// Serves reduce, where only the root has a block, and reduce_scatterv, whose blocks have any
// length.
#include "device/exchange.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll128_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  if (are_aligned<N>(job, moves))
    exchange_and_reduce<AlignedLl128, T, Op, N>(job, moves);
  else
    exchange_and_reduce<Ll128, T, Op, N>(job, moves);
}

}  // namespace commlib
