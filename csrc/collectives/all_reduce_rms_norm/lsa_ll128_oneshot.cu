// push my rows to all | poll all slots | sum in rank order | an epilogue on each; lines of 120
// bytes and their flag
#include "device/rms_norm.cuh"
#include "device/row_packets.cuh"

namespace commlib {

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowThreads, 1)
    lsa_ll128_oneshot(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  run_rows<PacketRows<T, N, kPairs>, Epilogue>(job, rows);
}

}  // namespace commlib
