// Compiled kernels: loaded once in a process, found again by name, launched.
#pragma once

#include <string>

#include "cuda/api.h"

namespace commlib {

struct Cubin {
  std::string code;
  std::string symbol;
};

// One kernel on one GPU, and what a block of it may have.
struct Function {
  CUfunction handle = nullptr;
  unsigned max_threads = 0;
  unsigned shared_tiles = 0;    // of shared memory, for a kernel that stages tiles there
  unsigned shared_slots = 0;    // the same where they have their size however large a tile is
  unsigned cluster_blocks = 1;  // a grid has whole clusters
  CUdeviceptr marks = 0;        // of a kernel compiled with them (device/marks.cuh)
  size_t mark_bytes = 0;
};

// The kernel of `cubin` in the current context. `name` sets kernels of one symbol apart. What was
// loaded is kept: communicators come and go, and a graph may still hold the code. A kernel may
// stage tiles of at most `tile_bytes` in shared memory; 0: it has none. `marked`: it is compiled
// with marks.
Function load_function(const std::string& name, const Cubin& cubin, size_t tile_bytes,
                       bool marked = false);

struct Grid {
  unsigned blocks;
  unsigned threads;
  unsigned shared_bytes;
  bool early;
  bool urgent = false;
};

// `grid.early`: the kernel may take its place on the GPU before the one ahead has ended, which wins
// a quarter of a microsecond. So kernels here begin by waiting for that (wait_for_stream). What
// needs the whole GPU for long had better not: where blocks of the one ahead leave one by one, some
// multiprocessors get two of the next and others none.
// `grid.urgent`: it has the highest priority. A GPU starts kernels of one priority in turn: one
// that finds no place, such as a matrix product in clusters, holds up all behind it.
void launch_kernel(const Function& function, const Grid& grid, CUstream stream, void** parameters);

}  // namespace commlib
