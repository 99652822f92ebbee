// The collectives of one communicator for Python; commlib/communicator.py calls them.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "binding/target.h"
#include "binding/tensor.h"

namespace commlib::binding {

// Keeps what the rank holds alive, also past close(): calls then say that it is closed.
class Calls {
 public:
  static constexpr const char* kName = "Calls";
  using Sizes = std::vector<int64_t>;  // elements of each rank's block

  explicit Calls(TargetPtr target) : target_(std::move(target)) {}

  // Returns the tensor that has the result: `out`, or `x` without one.
  python::Object* all_reduce(const Tensor& x, RedOp redop, const std::optional<Tensor>& out);
  void reduce(const Tensor& out, const Tensor& x, int64_t dst, RedOp redop);
  void broadcast(const Tensor& x, int64_t src);
  void all_gather(const Tensor& out, const Tensor& x);
  void all_gatherv(const Tensor& out, const Tensor& x, const Sizes& sizes);
  void reduce_scatter(const Tensor& out, const Tensor& x, RedOp redop);
  void reduce_scatterv(const Tensor& out, const Tensor& x, const Sizes& sizes, RedOp redop);
  void all_to_all(const Tensor& out, const Tensor& x);
  // `longest` is the longest block any rank sends to any other: the ranks exchanged their splits
  // beforehand.
  void all_to_allv(const Tensor& out, const Tensor& x, const Sizes& out_splits,
                   const Sizes& in_splits, int64_t longest);
  void gather(const Tensor& out, const Tensor& x, int64_t dst);
  void scatter(const Tensor& out, const Tensor& x, int64_t src);
  void send(const Tensor& x, int64_t dst);
  void recv(const Tensor& x, int64_t src);
  void barrier();
  // As barrier(), but on a GPU the host goes on.
  void enqueue_barrier();

 private:
  TargetPtr target_;
};

}  // namespace commlib::binding
