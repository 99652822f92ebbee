#include "nccl/kernels.h"

namespace commlib::nccl {

// The rows have the bounds of each parameter; this is what depends on two.
void Shape::check() const {
  if (u64{blocks} * (threads / 32) <= kChannels) return;
  fail("ValueError", "blocks is ", blocks, " and threads ", threads,
       ", but their product must be at most ", kChannels * 32);
}

int Kernels::add(Kernel kernel) {
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
  const bool moves_tiles = shared > 0;
  return {blocks, threads, shared, !moves_tiles};
}

void Kernels::launch(const Instance& instance, const Job& job, const Moves& moves, const Grid& grid,
                     CUstream stream) {
  // A kernel that only takes a job does not read the second one.
  void* parameters[] = {const_cast<Job*>(&job), const_cast<Moves*>(&moves)};
  launch_kernel(instance, grid, stream, parameters);
}

}  // namespace commlib::nccl
