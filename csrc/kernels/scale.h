// A scale of K or V as Python gave it: None, a number, or a tensor.
#pragma once

#include <optional>
#include <string>

#include "binding/ffi.h"
#include "kernels/tensors.h"

namespace commlib::kernels {

struct Scale {
  std::optional<Tensor> tensor;
  std::optional<double> number;
  const char* name = "k_scale";

  bool is_none() const { return !tensor && !number; }
};

}  // namespace commlib::kernels

namespace commlib::binding {

template <>
struct From<kernels::Scale> {
  static std::string name() { return "float | Tensor | None"; }
  static kernels::Scale take(Object* object, const Argument& argument) {
    if (python::is_none(object)) return {};
    if (python::is_instance(object, torch.tensor)) return {Tensor(object, argument), {}};
    return {{}, From<double>::take(object, argument)};
  }
  static kernels::Scale take(const Any& value, const Argument& argument) {
    if (value.type == ffi::kNone) return {};
    if (value.type == ffi::kFloat || value.type == ffi::kInt)
      return {{}, From<double>::take(value, argument)};
    return {From<Tensor>::take(value, argument), {}};
  }
};

}  // namespace commlib::binding
