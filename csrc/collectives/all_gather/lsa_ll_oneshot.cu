// push my block to all | take everyone's; packets of 8 bytes and their flag
#include "device/scatter.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll_oneshot(const __grid_constant__ Job job) {
  if (are_aligned(job, job.bytes))
    all_gather_oneshot<AlignedLl, N>(job);
  else
    all_gather_oneshot<Ll, N>(job);
}

}  // namespace commlib
