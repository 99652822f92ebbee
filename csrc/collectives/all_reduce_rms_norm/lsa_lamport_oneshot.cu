// push my rows to all | poll all slots | sum in rank order | an epilogue on each; packets without
// flags
#include "device/rms_norm.cuh"
#include "device/row_packets.cuh"

namespace commlib {

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowThreads, 1)
    lsa_lamport_oneshot(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  run_rows<PacketRows<T, N, kPairs, 1>, Epilogue>(job, rows);
}

}  // namespace commlib
