// push my words to all | poll all slots | sum in rank order; packets of 8 bytes and their flag
#include "device/oneshot.cuh"

namespace commlib {

template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll_oneshot(const __grid_constant__ Job job) {
  if (are_aligned(job, 0))
    all_reduce_oneshot<AlignedLl, T, Op, N>(job);
  else
    all_reduce_oneshot<Ll, T, Op, N>(job);
}

}  // namespace commlib
