#include "nccl/kernels.h"

namespace commlib::nccl {
namespace {

constexpr unsigned kMaxThreads = 512;  // of any kernel here

}  // namespace

void Shape::check() const {
  const unsigned warps = threads / 32;
  if (threads % 32 != 0 || threads < 32 || threads > kMaxThreads) {
    fail("ValueError", "threads ", threads, " is not a multiple of 32 from 32 to ", kMaxThreads);
  }
  if (blocks < 1 || blocks > kStreamBlocks || blocks * warps > kChannels) {
    fail("ValueError", "blocks ", blocks, " of ", threads, " threads: there is room for ",
         kStreamBlocks, " blocks and ", kChannels * 32, " threads");
  }
  if (tile_bytes % 512 != 0 || tile_bytes < 512 || tile_bytes > kSlotBytes) {
    fail("ValueError", "tile_bytes ", tile_bytes, " is not a multiple of 512 up to ", kSlotBytes);
  }
  if (grain_bytes < 1) fail("ValueError", "grain_bytes is 0");
}

int Kernels::add(Kernel kernel) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].kernel.op == kernel.op && entries_[i].kernel.name == kernel.name)
      return static_cast<int>(i);
  }
  entries_.push_back({std::move(kernel), {}});
  return static_cast<int>(entries_.size()) - 1;
}

void Kernels::load(const Kernel& kernel, DType dtype, RedOp redop, Instance* instance) {
  const Cubin cubin =
      builder_(kernel, kernel.reduces ? name_of(dtype) : "", kernel.reduces ? name_of(redop) : "");
  *instance = load_function(name_of(kernel.op), cubin, kSlotBytes);
}

Grid Kernels::grid_of(const Instance& instance, const Job& job, unsigned blocks, unsigned threads) {
  const unsigned shared = instance.shared_tiles * job.tile_bytes;
  const bool is_stream = shared > 0;
  return {blocks, threads, shared, !is_stream};
}

void Kernels::launch(const Instance& instance, const Job& job, const Moves& moves, const Grid& grid,
                     CUstream stream) {
  // A kernel that only takes a job does not read the second one.
  void* parameters[] = {const_cast<Job*>(&job), const_cast<Moves*>(&moves)};
  launch_kernel(instance, grid, stream, parameters);
}

}  // namespace commlib::nccl
