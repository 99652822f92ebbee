// push rows to who sums them | sum mine in rank order and push them to all | an epilogue on each;
// tiles with one flag each
//
// All ranks run the epilogue on all rows, and nothing but sums travels.
#include "device/rms_norm.cuh"
#include "device/row_tiles.cuh"

namespace commlib {

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowTileThreads, 1)
    lsa_twoshot(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  run_row_tiles<T, Epilogue, N, kPairs, 2>(job, rows);
}

}  // namespace commlib
