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
      if (!Epilogue::run(*this)) return;
    }
  }
  __device__ __forceinline__ bool take(typename Base::Row& x) const {
    const u8* own = this->own_row(this->row_);
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      u32 w[4] = {};
      if (this->has_pair(k)) ld_words(own + 16 * this->pair(k), w);
#pragma unroll
      for (int e = 0; e < Base::kElements; e += 4)
        Four<T>::widen(&w[e / 4 * Four<T>::kWords], &x.v[k][e]);
    }
    return true;
  }
};

template <class T, class Epilogue, int N, int kPairs>
__global__ void __launch_bounds__(kRowThreads, 1)
    alone(const __grid_constant__ Job job, const __grid_constant__ Rows rows) {
  static_assert(N == 1, "one rank's rows");
  __shared__ RowBoard board;
  wait_for_stream();
  let_next_start();
  OwnRows<T, kPairs>(job, rows, &board).template run<Epilogue>();
}

}  // namespace commlib
