// push block p to rank p | reduce my block in rank order; packets without flags
#include "device/scatter.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_lamport_oneshot(const __grid_constant__ Job job) {
  if (whole_pairs(job))
    reduce_scatter_oneshot<WholeLamport, T, Op, N>(job);
  else
    reduce_scatter_oneshot<Lamport, T, Op, N>(job);
}

}  // namespace commlib
