// What Python calls without tvm-ffi: prefix_match, the makers of radix trees, and any function by
// its name.
#include <algorithm>
#include <array>

#include "binding/direct.h"
#include "binding/python.h"
#include "binding/radix.h"
#include "kernels/prefix.h"

namespace commlib::binding {
namespace {

using python::Array;
using python::entered;
using python::Fresh;
using python::Object;
using python::Owned;
using python::Size;

size_t shared(const Array& a, const Array& b) {
  const size_t count = std::min(a.count, b.count);
  const auto *a32 = static_cast<const int32_t*>(a.data), *b32 = static_cast<const int32_t*>(b.data);
  const auto *a64 = static_cast<const int64_t*>(a.data), *b64 = static_cast<const int64_t*>(b.data);
  if (a.wide) {
    return b.wide ? kernels::prefix_match(a64, b64, count) : kernels::prefix_match(a64, b32, count);
  }
  return b.wide ? kernels::prefix_match(a32, b64, count) : kernels::prefix_match(a32, b32, count);
}

size_t page_of(Object* object) {
  const int64_t page = python::integer(object, "page_size");
  if (page < 1) fail("ValueError", "page_size is ", page, ", but a page has 1 token or more");
  return static_cast<size_t>(page);
}

// (a, b, page_size) → tokens shared, in whole pages
Object* prefix_match(Object*, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 3);
    const Array a(given[0], "a"), b(given[1], "b");
    const size_t page = page_of(given[2]), same = shared(a, b);
    return python::number(static_cast<int64_t>(page == 1 ? same : same - same % page));
  });
}

// (query, list of keys, page_size) → tensor of tokens shared
Object* prefix_match_many(Object*, Object* const* given, Size count) {
  return entered([&] {
    python::takes(count, 3);
    const Array query(given[0], "query");
    const size_t page = page_of(given[2]);
    const Size many = python::api.PySequence_Size(given[1]);
    if (many < 0) throw python::Raised();
    Fresh lengths(static_cast<size_t>(many), true);
    for (Size i = 0; i < many; ++i) {
      const Owned item(python::api.PySequence_GetItem(given[1], i));
      const std::string name = "keys[" + std::to_string(i) + "]";
      const size_t same = shared(query, Array(item.get(), name.c_str()));
      lengths.as<int64_t>()[i] = static_cast<int64_t>(same - same % page);
    }
    return lengths.release();
  });
}

std::array<python::Method, 5> functions = {{
    {"direct", direct, python::kFastCall, nullptr},
    {"prefix_match", prefix_match, python::kFastCall, nullptr},
    {"prefix_match_many", prefix_match_many, python::kFastCall, nullptr},
    {"radix_open", radix_open, python::kFastCall, nullptr},
    {"radix_restore", radix_restore, python::kFastCall, nullptr},
}};

}  // namespace
}  // namespace commlib::binding

// Called once, by commlib/extension.py, with the interpreter's lock held. Returns a dictionary of
// functions; null with a Python error set, or, where even that failed, without one.
extern "C" __attribute__((visibility("default"))) commlib::binding::python::Object*
commlib_extension(const DLPackExchangeAPI* torch, commlib::binding::python::Object* tensor_class,
                  commlib::binding::python::Object* parameter_class, const char* isa) {
  namespace python = commlib::binding::python;
  try {
    python::connect(torch, tensor_class, parameter_class);
  } catch (const commlib::Failure&) {
    return nullptr;
  }
  return python::entered([&] {
    if (!commlib::kernels::prefix_use(isa))
      commlib::fail("ValueError", "this CPU does not have x86-64-", isa, "; unset COMMLIB_ISA");
    python::Owned all(python::api.PyDict_New());
    for (python::Method& method : commlib::binding::functions) {
      const python::Owned function(python::api.PyCFunction_NewEx(&method, nullptr, nullptr));
      if (python::api.PyDict_SetItemString(all.get(), method.name, function.get()) != 0)
        throw python::Raised();
    }
    return all.give();
  });
}
