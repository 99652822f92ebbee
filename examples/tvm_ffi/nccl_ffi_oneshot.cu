// all_reduce in one exchange: push my piece into every peer's room | signal | wait | add all in
// rank order, in fp32.
//
// Block b works with block b of the peers alone, through slots, signals and a counter of its own.
// Two halves of a room take turns: when a block pushes into one again, it has heard of the peer's
// next piece, so the peer has read this one.
#include <commlib/ffi.h>
#include <cuda_bf16.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>

using commlib::ffi::Deadline;
using tvm::ffi::TensorView;

constexpr int kBlocks = 128, kThreads = 512, kMaxRanks = 8;
constexpr int64_t kRoomBytes = 32 << 20;  // as in oneshot.py

struct Ranks {
  unsigned char* const* rooms;
  uint64_t* const* signals;
  uint64_t* calls;
  Deadline* deadline;
  int rank, size;

  // All slots of a room are two for each block and rank.
  __host__ __device__ int64_t slot_bytes() const {
    return kRoomBytes / (2 * kBlocks * size) / 16 * 16;
  }
  // In the room of `owner`, what rank `from` pushes in this step.
  __device__ unsigned char* slot(int owner, uint64_t step, int from) const {
    const int64_t slots = (static_cast<int64_t>(step % 2) * size + from) * kBlocks + blockIdx.x;
    return rooms[owner] + slots * slot_bytes();
  }
  // Of `owner`, the word that rank `from` sets.
  __device__ uint64_t* word(int owner, int from) const {
    return signals[owner] + blockIdx.x * kMaxRanks + from;
  }
};

// N elements that one thread moves at a time.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T of[N];
};

// A peer has written it while this kernel runs: not from the cache of this multiprocessor.
template <class Pack>
__device__ Pack load(const Pack* from) {
  Pack pack;
  if constexpr (sizeof(Pack) == 16) {
    *reinterpret_cast<uint4*>(&pack) = __ldcg(reinterpret_cast<const uint4*>(from));
  } else {
    volatile const auto* bytes = reinterpret_cast<const unsigned char*>(from);
    for (unsigned i = 0; i < sizeof(Pack); ++i)
      reinterpret_cast<unsigned char*>(&pack)[i] = bytes[i];
  }
  return pack;
}

// `count` packs in pieces of `piece`, the same on every rank.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    oneshot(Pack<T, N>* out, const Pack<T, N>* x, int64_t count, int64_t piece, Ranks ranks) {
  uint64_t step = ranks.calls[blockIdx.x];
  for (int64_t first = blockIdx.x * piece; first < count; first += gridDim.x * piece) {
    const int64_t end = min(piece, count - first);
    ++step;
    for (int64_t i = threadIdx.x; i < end; i += kThreads) {
      const Pack<T, N> mine = x[first + i];
      for (int r = 0; r < ranks.size; ++r) {
        if (r != ranks.rank)
          reinterpret_cast<Pack<T, N>*>(ranks.slot(r, step, ranks.rank))[i] = mine;
      }
    }
    __syncthreads();
    bool came = true;
    const int peer = threadIdx.x;
    if (peer < ranks.size && peer != ranks.rank) {
      commlib::ffi::signal(ranks.word(peer, ranks.rank), step, ranks.deadline);
      came = commlib::ffi::wait(ranks.word(ranks.rank, peer), step, peer, ranks.deadline);
    }
    if (!__syncthreads_and(came)) return;
    for (int64_t i = threadIdx.x; i < end; i += kThreads) {
      float sum[N];
      for (int r = 0; r < ranks.size; ++r) {
        const Pack<T, N> part =
            r == ranks.rank
                ? x[first + i]
                : load(reinterpret_cast<const Pack<T, N>*>(ranks.slot(ranks.rank, step, r)) + i);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const auto value = static_cast<float>(part.of[n]);
          sum[n] = r == 0 ? value : sum[n] + value;
        }
      }
      Pack<T, N> result;
#pragma unroll
      for (int n = 0; n < N; ++n) result.of[n] = static_cast<T>(sum[n]);
      out[first + i] = result;
    }
  }
  if (threadIdx.x == 0) ranks.calls[blockIdx.x] = step;
}

template <class T, int N>
void launch(TensorView out, TensorView x, const Ranks& ranks) {
  // The bytes of a piece are the same on all ranks, also where their tensors are aligned otherwise.
  const int64_t bytes = x.numel() * static_cast<int64_t>(sizeof(T));
  const int64_t share = (bytes + kBlocks * 16 - 1) / (kBlocks * 16) * 16;
  const int64_t piece_bytes = std::min(ranks.slot_bytes(), std::max<int64_t>(share, 1024));
  const int64_t blocks = std::min<int64_t>(kBlocks, (bytes + piece_bytes - 1) / piece_bytes);
  void* const stream = TVMFFIEnvGetStream(kDLCUDA, x.device().device_id);
  oneshot<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Pack<T, N>*>(out.data_ptr()), static_cast<const Pack<T, N>*>(x.data_ptr()),
      x.numel() / N, piece_bytes / static_cast<int64_t>(sizeof(T) * N), ranks);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) TVM_FFI_THROW(RuntimeError) << cudaGetErrorString(error);
}

template <class T>
void launch_aligned(TensorView out, TensorView x, const Ranks& ranks) {
  constexpr int kPack = 16 / sizeof(T);
  const auto places =
      reinterpret_cast<uintptr_t>(out.data_ptr()) | reinterpret_cast<uintptr_t>(x.data_ptr());
  if (places % 16 == 0 && x.numel() % kPack == 0) return launch<T, kPack>(out, x, ranks);
  launch<T, 1>(out, x, ranks);
}

void nccl_ffi_oneshot(TensorView out, TensorView x, TensorView peers, TensorView signals,
                      int64_t rank, int64_t size, TensorView calls, TensorView deadline) {
  const Ranks ranks = {static_cast<unsigned char* const*>(peers.data_ptr()),
                       static_cast<uint64_t* const*>(signals.data_ptr()),
                       static_cast<uint64_t*>(calls.data_ptr()),
                       static_cast<Deadline*>(deadline.data_ptr()),
                       static_cast<int>(rank),
                       static_cast<int>(size)};
  const DLDataType type = x.dtype();
  if (type.code == kDLFloat && type.bits == 32) return launch_aligned<float>(out, x, ranks);
  if (type.code == kDLBfloat && type.bits == 16)
    return launch_aligned<__nv_bfloat16>(out, x, ranks);
  TVM_FFI_THROW(ValueError) << "nccl_ffi_oneshot sums float32 and bfloat16";
}
