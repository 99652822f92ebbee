// push my rows to all | sum everyone's in rank order | an epilogue on each; tiles with one flag
// each
//
// Each rank sends all its rows to every peer: for two ranks that is no more than in two phases.
#include "device/rms_norm.cuh"
#include "device/row_tiles.cuh"

namespace commlib {

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowTileThreads, 1)
    lsa_oneshot(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  run_row_tiles<T, Epilogue, N, kPairs, 1>(job, rows);
}

}  // namespace commlib
