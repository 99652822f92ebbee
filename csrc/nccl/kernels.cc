#include "nccl/kernels.h"

namespace commlib::nccl {

// The rows have the bounds of each parameter; this is what depends on two.
void Shape::check() const {
  if (u64{blocks} * (threads / 32) <= kChannels) return;
  fail("ValueError", "blocks is ", blocks, " and threads ", threads,
       ", but their product must be at most ", kChannels * 32);
}

int Kernels::add(Kernel kernel) {
  entries_.push_back({std::move(kernel), {}, {}});
  return static_cast<int>(entries_.size()) - 1;
}

void Kernels::set_marked(bool marked) {
  if (marked == marked_) return;
  marked_ = marked;
  for (Entry& entry : entries_) entry = {std::move(entry.kernel), {}, {}};
}

void Kernels::load(const Kernel& kernel, DType dtype, const EpilogueText& form,
                   Instance* instance) {
  const Cubin cubin =
      builder_(kernel, kernel.reduces ? name_of(dtype) : "", form.words, form.source);
  *instance = load_function(name_of(kernel.op), cubin, kSlotBytes, marked_);
}

const Kernels::Instance& Kernels::get_row(int index, const Call& call, int world) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  const RowCall& row = *call.rows;
  const int pairs = row_pairs(row.rows.width * static_cast<u32>(call.element()));
  const uint64_t form = static_cast<uint64_t>(call.dtype) << 16 |
                        static_cast<uint64_t>(pairs) << 8 | static_cast<uint64_t>(world);
  Instance& instance = entry.rows[{row.epilogue, row.types, form}];
  if (!instance.handle) {
    EpilogueText epilogue = row.describe();
    epilogue.words = text("world=", world, " pairs=", pairs, " ", epilogue.words);
    load(entry.kernel, call.dtype, epilogue, &instance);
  }
  return instance;
}

Grid Kernels::grid_of(const Instance& instance, const Job& job, unsigned blocks, unsigned threads) {
  if (job.tile_bytes == 0 || !moves_tiles(instance)) return {blocks, threads, 0, true};
  const unsigned shared =
      instance.shared_tiles * job.tile_bytes + instance.shared_slots * kSlotBytes;
  return {blocks, threads, shared, false};
}

void Kernels::launch(const Instance& instance, const Job& job, const void* more, const Grid& grid,
                     CUstream stream) {
  void* parameters[] = {const_cast<Job*>(&job), const_cast<void*>(more)};
  launch_kernel(instance, grid, stream, parameters);
}

}  // namespace commlib::nccl
