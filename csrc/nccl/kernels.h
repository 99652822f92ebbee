// Kernels of this library on one GPU: compiled by Python when first needed, loaded, launched.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "commlib/call.h"
#include "commlib/job.h"
#include "commlib/row_call.h"
#include "cuda/module.h"

namespace commlib::nccl {

// How a plan wants a kernel launched: at most `blocks`, as many as give each thread `grain_bytes`.
struct Shape {
  unsigned blocks;
  unsigned threads;
  unsigned grain_bytes;
  unsigned tile_bytes;    // of a step
  unsigned packet_bytes;  // messages of at most so many move in packets

  // Throws ValueError unless kernels have room for it.
  void check() const;
};

struct Kernel {
  Op op;
  std::string source;  // below csrc
  std::string name;
  bool reduces;  // is compiled for an element type and a reduction
};

// Compiles a kernel for an element type and a form, by their words ("" where it has none): the
// reduction, or what it does with rows, "world=2 pairs=1 weight=bfloat16 center=no quant=none".
// `source` is the text of an epilogue of the user's.
using Builder = std::function<Cubin(const Kernel&, const char* dtype, const std::string& form,
                                    const std::string& source)>;

class Kernels {
 public:
  void set_builder(Builder builder) { builder_ = std::move(builder); }
  int add(Kernel kernel);
  // From now on kernels have marks (device/marks.cuh), or none; the builder knows it too.
  void set_marked(bool marked);

  using Instance = Function;
  // The instance for such elements, compiled and loaded now if this is its first use.
  const Instance& get(int index, DType dtype, RedOp redop) {
    Entry& entry = entries_[index];
    Instance& instance = entry.kernel.reduces
                             ? entry.instances[static_cast<int>(dtype)][redop != RedOp::sum]
                             : entry.instances[0][0];
    if (!instance.handle)
      load(entry.kernel, dtype, {entry.kernel.reduces ? name_of(redop) : "", ""}, &instance);
    return instance;
  }
  // That for rows of a call over so many ranks.
  const Instance& get_row(int index, const Call& call, int world);
  static bool moves_tiles(const Instance& instance) {
    return instance.shared_tiles + instance.shared_slots > 0;
  }
  static Grid grid_of(const Instance& instance, const Job& job, unsigned blocks, unsigned threads);
  // `more`: the kernel's second parameter; one that only takes a job does not read it.
  static void launch(const Instance& instance, const Job& job, const void* more, const Grid& grid,
                     CUstream stream);

 private:
  struct Entry {
    Kernel kernel;
    Instance instances[kDTypes][2];  // by element type; the sum, any reduction
    std::map<std::array<uint64_t, 3>, Instance> rows;
  };
  void load(const Kernel& kernel, DType dtype, const EpilogueText& form, Instance* instance);

  std::vector<Entry> entries_;
  bool marked_ = false;
  Builder builder_;
};

}  // namespace commlib::nccl
