// push a packet to all | take everyone's
#include "device/exchange.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll_exchange(const __grid_constant__ Job job, const __grid_constant__ Moves moves) {
  exchange<Ll, N>(job, moves);
}

}  // namespace commlib
