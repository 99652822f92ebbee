// push my words to all | poll all slots | sum in rank order; packets without flags
#include "device/oneshot.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_lamport_oneshot(const __grid_constant__ Job job) {
  if (whole_pairs(job))
    all_reduce_oneshot<WholeLamport, T, Op, N>(job);
  else
    all_reduce_oneshot<Lamport, T, Op, N>(job);
}

}  // namespace commlib
