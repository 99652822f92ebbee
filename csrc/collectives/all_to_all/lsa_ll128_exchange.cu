// push to each peer what is its own | take what is mine; lines of 120 bytes and their flag
//
// Serves every collective that only moves: Moves says what goes where (nccl/moves.h).
#include "device/exchange.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll128_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  if (are_aligned<N>(job, moves))
    exchange<AlignedLl128, N>(job, moves);
  else
    exchange<Ll128, N>(job, moves);
}

}  // namespace commlib
