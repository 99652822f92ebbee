// push part p to rank p | reduce my part in rank order | push it to all | take theirs; packets
// without flags
#include "device/scatter.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_lamport_twoshot(const __grid_constant__ Job job) {
  if (whole_pairs(job))
    all_reduce_twoshot<WholeLamport, T, Op, N>(job);
  else
    all_reduce_twoshot<Lamport, T, Op, N>(job);
}

}  // namespace commlib
