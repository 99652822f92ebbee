// push block p to rank p | reduce my block in rank order; packets of 8 bytes and their flag
#include "device/scatter.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll_oneshot(const __grid_constant__ Job job) {
  if (are_aligned(job, job.bytes))
    reduce_scatter_oneshot<AlignedLl, T, Op, N>(job);
  else
    reduce_scatter_oneshot<Ll, T, Op, N>(job);
}

}  // namespace commlib
