// push my block to all | take everyone's; lines of 120 bytes and their flag
#include "device/scatter.cuh"

namespace commlib {

template <int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1)
    lsa_ll128_oneshot(const __grid_constant__ Job job) {
  if (whole_pairs(job))
    all_gather_oneshot<WholeLl128, N>(job);
  else
    all_gather_oneshot<Ll128, N>(job);
}

}  // namespace commlib
