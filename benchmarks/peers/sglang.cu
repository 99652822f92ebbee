// SGLang's all-reduces on its symmetric workspace behind C functions: what the host code of its
// headers does, without the objects of tvm-ffi that the host code takes. sglang.py says how to
// build it.
#include <iostream>

#include "all_reduce_fusion.cuh"
#include "custom_all_reduce.cuh"

using namespace sglang;
using device::distributed::Counter, device::distributed::Semaphore;

// The headers number their types when the library is loaded. No object of these types is made.
int32_t TVMFFITypeGetOrAllocIndex(const TVMFFIByteArray*, int32_t, int32_t, int32_t, int32_t,
                                  int32_t) {
  return 0;
}

constexpr int kMaxRanks = 8;
constexpr int kRowsOfFour = 272;  // up to as many rows, a two-shot norm has clusters of four
enum Algorithm { kOneShotPush, kTwoShotPush, kOneShotPull, kTwoShotPull };

// sglang.py has the same structure.
struct Workspace {
  int rank, size, push_blocks, pull_blocks;
  int64_t slot_bytes, pull_bytes;
  Counter* counter;  // one for each push block
  uint8_t* push[kMaxRanks];
  uint8_t* pull[kMaxRanks];
  Semaphore* semaphores[kMaxRanks];
};

template <uint32_t kRanks>
static PushWorkSpace<kRanks> push_space(const Workspace& workspace, int64_t num_bytes) {
  CHECK_HOST(num_bytes <= workspace.slot_bytes) << "the slots are too small";
  PushWorkSpace<kRanks> space{
      {}, workspace.counter, nullptr, static_cast<uint32_t>(workspace.slot_bytes)};
  std::copy_n(workspace.push, kRanks, space.workspaces.begin());
  return space;
}

template <uint32_t kRanks>
static PullWorkSpace<kRanks> pull_space(const Workspace& workspace, int64_t num_bytes) {
  CHECK_HOST(num_bytes <= workspace.pull_bytes) << "the workspace is too small";
  PullWorkSpace<kRanks> space{};
  std::copy_n(workspace.semaphores, kRanks, space.semaphores.begin());
  std::copy_n(workspace.pull, kRanks, space.workspaces.begin());
  return space;
}

template <uint32_t kRanks>
static void push(const Workspace& workspace, const void* x, void* out, uint32_t num_vecs,
                 bool two_shot, cudaStream_t stream) {
  const int64_t needed =
      two_shot ? int64_t{2} * 16 * host::div_ceil(num_vecs, kRanks) : int64_t{16} * num_vecs;
  const AllReducePushParams<kRanks> params{.input = x,
                                           .output = out,
                                           .num_vecs = num_vecs,
                                           .rank = static_cast<uint32_t>(workspace.rank),
                                           .ws = push_space<kRanks>(workspace, needed)};
  const auto kernel = two_shot ? all_reduce_2shot_push_kernel<bf16_t, kRanks, true>
                               : all_reduce_1shot_push_kernel<bf16_t, kRanks, true>;
  const uint32_t blocks = workspace.push_blocks;
  auto threads = choose_block_size(num_vecs);
  if (two_shot) threads = std::max(threads, 32u * host::div_ceil(kRanks - 1, blocks));
  host::LaunchKernel(blocks, threads, stream).enable_pdl(true)(kernel, params);
}

static void copy(void* to, const void* from, uint32_t num_vecs, cudaStream_t stream) {
  static_assert(device::kMaxVecBytes == 16);
  const int64_t num_bytes = int64_t{16} * num_vecs;
  if (num_bytes <= 8 << 20) {
    host::LaunchKernel(host::div_ceil(num_vecs, 128u), 128u, stream)
        .enable_pdl(true)(memcpy_kernel<16>, to, from, num_vecs);
  } else {
    CHECK_CUDA(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, stream));
  }
}

// With `registered`, every rank's x by its address here, x is read where it is, and two shots write
// to it.
template <uint32_t kRanks>
static void pull(const Workspace& workspace, const void* x, void* out, uint32_t num_vecs,
                 bool two_shot, void* const* registered, cudaStream_t stream) {
  using Vec = device::AlignedVector<packed_t<bf16_t>, 4>;
  using Staged = LoadStoreImpl<Vec, kRanks, false>;
  using Registered = LoadStoreImpl<Vec, kRanks, true>;
  CHECK_HOST(!(two_shot && registered) || x == out)
      << "two shots on registered tensors are in place";
  const AllReducePullParams<kRanks> params{
      .output = out,
      .num_vecs = num_vecs,
      .rank = static_cast<uint32_t>(workspace.rank),
      .graph_params = registered,
      .ws = pull_space<kRanks>(workspace, registered ? 0 : int64_t{16} * num_vecs)};
  void* const staged = params.ws.workspaces[workspace.rank];
  const auto one = registered ? all_reduce_1shot_pull_kernel<Registered, bf16_t, kRanks, true>
                              : all_reduce_1shot_pull_kernel<Staged, bf16_t, kRanks, true>;
  const auto two = registered ? all_reduce_2shot_pull_kernel<Registered, bf16_t, kRanks, true>
                              : all_reduce_2shot_pull_kernel<Staged, bf16_t, kRanks, true>;
  if (!registered) copy(staged, x, num_vecs, stream);
  const auto threads = choose_block_size(two_shot ? host::div_ceil(num_vecs, kRanks) : num_vecs);
  host::LaunchKernel(workspace.pull_blocks, threads, stream)
      .enable_pdl(true)(two_shot ? two : one, params);
  if (two_shot && !registered) copy(out, staged, num_vecs, stream);
}

template <uint32_t kRanks>
static void all_reduce(const Workspace& workspace, const void* x, void* out, int64_t elements,
                       int algorithm, void* const* registered, cudaStream_t stream) {
  CHECK_HOST(elements > 0 && elements % 8 == 0 && elements >> 32 == 0) << "not whole vectors";
  const auto num_vecs = static_cast<uint32_t>(elements / 8);
  const bool two_shot = algorithm == kTwoShotPush || algorithm == kTwoShotPull;
  if (algorithm == kOneShotPush || algorithm == kTwoShotPush) {
    push<kRanks>(workspace, x, out, num_vecs, two_shot, stream);
  } else {
    pull<kRanks>(workspace, x, out, num_vecs, two_shot, registered, stream);
  }
}

struct Rows {
  void *x, *residual;  // they are written, too
  const void* weight;
  float eps;
  int tokens;
  cudaStream_t stream;
};

template <uint32_t kRanks, uint32_t kHidden, uint32_t kCluster, bool kTwoShot>
static void launch_norm(const Workspace& workspace, const Rows& rows) {
  using Pointer = bf16_t*;
  const auto tokens = static_cast<uint32_t>(rows.tokens);
  const uint32_t counters = workspace.push_blocks;
  CHECK_HOST(rows.tokens > 0 && tokens <= counters) << "no rows, or a row has no counter";
  const MoeFinalizeAllReduceParams<kRanks, bf16_t> params{
      .out = Pointer(rows.x),
      .gemm2 = Pointer(rows.x),
      .norm_weight = static_cast<const bf16_t*>(rows.weight),
      .norm_eps = rows.eps,
      .prefetch_metadata = false,
      .rank = static_cast<uint32_t>(workspace.rank),
      .num_tokens = tokens,
      .num_push_counters = counters,
      .ws = push_space<kRanks>(workspace, int64_t{2} * kHidden * tokens),
      .add_residual = Pointer(rows.residual),
      .residual_out = Pointer(rows.residual)};
  const auto kernel = moe_finalize_all_reduce_kernel<kRanks, kHidden, 0, kCluster, true, false,
                                                     true, bf16_t, false, false, false, kTwoShot>;
  const uint32_t clusters = tokens + (tokens < counters ? 1 : 0);  // the last flips other counters
  host::LaunchKernel(dim3(clusters, kCluster), RowClusterTrait<kHidden, kCluster>::kBlockSize,
                     rows.stream)
      .enable_pdl(true)(kernel, params);
}

// The clusters that SGLang's Python chooses.
template <uint32_t kRanks, uint32_t kHidden>
static void add_norm_of(const Workspace& workspace, const Rows& rows, bool two_shot) {
  if (!two_shot) {
    launch_norm<kRanks, kHidden, kHidden / 1024, false>(workspace, rows);
  } else if (rows.tokens <= kRowsOfFour) {
    launch_norm<kRanks, kHidden, 4, true>(workspace, rows);
  } else {
    launch_norm<kRanks, kHidden, kHidden / 1024, true>(workspace, rows);
  }
}

template <uint32_t kRanks>
static void add_norm(const Workspace& workspace, const Rows& rows, int hidden, bool two_shot) {
  switch (hidden) {
    case 4096:
      return add_norm_of<kRanks, 4096>(workspace, rows, two_shot);
    case 5120:
      return add_norm_of<kRanks, 5120>(workspace, rows, two_shot);
    case 7168:
      return add_norm_of<kRanks, 7168>(workspace, rows, two_shot);
    case 8192:
      return add_norm_of<kRanks, 8192>(workspace, rows, two_shot);
    default:
      SGL_PANIC << "it was not built for rows of " << hidden;
  }
}

// Calls `made` with the number of ranks as a type; returns an error of CUDA's, or 0.
template <typename Made>
static int run(const Workspace& workspace, std::initializer_list<const void*> aligned,
               const Made& made) try {
  for (const void* pointer : aligned) {
    CHECK_HOST(reinterpret_cast<uintptr_t>(pointer) % 16 == 0) << "a tensor is not aligned";
  }
  switch (workspace.size) {
    case 2:
      made(std::integral_constant<uint32_t, 2>{});
      return 0;
    case 4:
      made(std::integral_constant<uint32_t, 4>{});
      return 0;
    case 8:
      made(std::integral_constant<uint32_t, 8>{});
      return 0;
    default:
      return cudaErrorNotSupported;
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return cudaErrorUnknown;
}

extern "C" int sglang_all_reduce(const Workspace* workspace, const void* x, void* out,
                                 int64_t elements, int algorithm, void* const* registered,
                                 cudaStream_t stream) {
  return run(*workspace, {x, out}, [&](auto ranks) {
    all_reduce<ranks.value>(*workspace, x, out, elements, algorithm, registered, stream);
  });
}

// The sum of all ranks' x with the residual goes to the residual, the norm of its rows in place of
// x.
extern "C" int sglang_add_norm(const Workspace* workspace, void* x, void* residual,
                               const void* weight, float eps, int tokens, int hidden, int two_shot,
                               cudaStream_t stream) {
  const Rows rows{x, residual, weight, eps, tokens, stream};
  return run(*workspace, {x, residual, weight},
             [&](auto ranks) { add_norm<ranks.value>(*workspace, rows, hidden, two_shot != 0); });
}
