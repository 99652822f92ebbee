// tvm-ffi's values, its errors, and the communicators that its calls name.
#include "binding/ffi.h"

#include "binding/calls.h"
#include "nccl/algorithm.h"
#include "plan/row.h"
#include "shm/group.h"

namespace commlib::binding {
namespace {

// A handle is a place in here, counted from 1. Guarded by the interpreter's lock.
std::vector<std::weak_ptr<Target>> targets;

int64_t handle(Target& target) {
  targets.push_back(target.weak_from_this());
  return static_cast<int64_t>(targets.size());
}
COMMLIB_METHOD_OF_CALLS(call_of, handle, "");

// Makes a function, by its address, the native half of a row; both stay until the process ends.
void add_ffi_algorithm(const std::string& backend, const std::string& op, const std::string& name,
                       int64_t address) {
  const char* const label = (new std::string(name))->c_str();
  auto* const function = reinterpret_cast<void*>(address);
  if (backend == "shm") {
    const auto run = [](shm::Group& group, const Call& call) { group.run_ffi(call); };
    shm::add({op_named(op), label, run, function});
  } else {
    nccl::Algorithm::all().push_back({op_named(op), label, nullptr, function});
  }
}

COMMLIB_MODULE(module) {
  module.add(
      {COMMLIB_METHOD("add_ffi_algorithm", add_ffi_algorithm, "backend, op, name, function")});
}

}  // namespace

TargetPtr From<TargetPtr>::take(const Any& value, const Argument& argument) {
  const int64_t handle = From<int64_t>::take(value, argument);
  const auto at = static_cast<size_t>(handle) - 1;
  const TargetPtr target = at < targets.size() ? targets[at].lock() : nullptr;
  if (target) return target;
  fail("ValueError", "handle ", handle, " is of no communicator that is there; pass what ",
       "commlib.ffi.handle(comm) returns");
}

void set_ffi_error() noexcept {
  constexpr const char* kSetInPython = "EnvErrorAlreadySet";  // tvm-ffi passes that one on
  try {
    throw;
  } catch (const Failure& failure) {
    ffi::set_error(failure.kind().c_str(), failure.what());
  } catch (const python::Raised&) {
    ffi::set_error(kSetInPython, "");
  } catch (const Interrupted&) {
    ffi::set_error(kSetInPython, "");
  } catch (const std::exception& error) {
    ffi::set_error("RuntimeError", error.what());
  }
}

void refuse(const Any& value, const Argument& argument, const char* wanted) {
  fail("TypeError", argument.name(), " is ",
       value.type == ffi::kNone ? "not there" : text("of tvm-ffi's type ", value.type),
       ", but must be ", wanted);
}

std::string From<std::string>::take(const Any& value, const Argument& argument) {
  if (value.type == ffi::kCString) return value.c_string;
  if (value.type == ffi::kShortString) return {value.short_string, value.short_length};
  if (value.type != ffi::kString) refuse(value, argument, "a string");
  const auto& bytes = ffi::content<ffi::Bytes>(value.pointer);
  return {bytes.data, bytes.size};
}

std::vector<int64_t> From<std::vector<int64_t>>::take(const Any& value, const Argument& argument) {
  if (value.type == ffi::kNone) return {};
  if (value.type != ffi::kArray && value.type != ffi::kList)
    refuse(value, argument, "an array of int");
  const auto& items = ffi::content<ffi::Items>(value.pointer);
  std::vector<int64_t> numbers;
  for (const Any* item = items.data; item != items.data + items.size; ++item)
    numbers.push_back(From<int64_t>::take(*item, argument));
  return numbers;
}

RedOp From<RedOp>::take(const Any& value, const Argument& argument) {
  const std::string name =
      value.type == ffi::kNone ? "sum" : From<std::string>::take(value, argument);
  const int code = redop_named(name);
  if (code < 0) fail("ValueError", "unknown reduction '", name, "'");
  return static_cast<RedOp>(code);
}

Array::Array(const Tensor& tensor, const Argument& argument)
    : data(tensor.data()),
      wide(tensor.type().bits == 64),
      count(static_cast<size_t>(tensor.numel())) {
  const ElementType type = tensor.type();
  if (type.code != kInt || (type.bits != 32 && !wide) || tensor.device().type != kCpu ||
      tensor.ndim() != 1 || !tensor.is_contiguous()) {
    fail("ValueError", argument.name(),
         " must be int32 or int64, on the CPU, of 1 dimension and contiguous");
  }
}

}  // namespace commlib::binding
