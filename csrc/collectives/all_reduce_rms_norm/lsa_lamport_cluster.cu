// push my rows to all | poll all slots | sum in rank order | an epilogue on each; a cluster of
// blocks for each row, packets without flags
#include "device/rms_norm.cuh"
#include "device/row_packets.cuh"

namespace commlib {

constexpr int kBlocks = cluster_of(4);

template <class T, class Epilogue, int N, int kPairs>
__global__ void COMMLIB_CLUSTER(kBlocks) __launch_bounds__(kRowThreads / kBlocks, kBlocks)
    lsa_lamport_cluster(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  run_rows<PacketRows<T, N, kPairs, 1, kBlocks>, Epilogue>(job, rows);
}

}  // namespace commlib
