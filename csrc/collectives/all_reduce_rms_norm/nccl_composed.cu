// rows that are whole already | an epilogue on each: one rank's, or those of any all_reduce before
//
// Nothing is waited for but the stream, so any number of blocks will do.
#include "device/rms_norm.cuh"

namespace commlib {

template <class T, int kPairs>
class OwnRows : public RowBlock<T, kPairs> {
 public:
  using Base = RowBlock<T, kPairs>;
  using Base::Base;

  // Nobody is waited for meanwhile, and without these registers two blocks fit on a multiprocessor.
  template <class E>
  __device__ __forceinline__ Input<E, T, kPairs, false> input(int field) const {
    return this->template late_input<E>(field);
  }
  template <class Epilogue>
  __device__ __forceinline__ void run() {
    for (u64 row = blockIdx.x; row < this->rows_.rows; row += gridDim.x) {
      this->begin(row);
      Epilogue::run(*this);
    }
  }
  __device__ __forceinline__ typename Base::Row take() const {
    Pair own[kPairs];
    this->load_own(this->row_, own);
    return this->unpack(own);
  }
};

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowThreads, kPairs * 16 / sizeof(T) > 16 ? 1 : 2)
    nccl_composed(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  static_assert(N == 1, "one rank's rows");
  wait_for_stream();
  let_next_start();
  __shared__ RowBoard board;
  OwnRows<T, kPairs>(job, rows, &board, false).template run<Epilogue>();
}

}  // namespace commlib
