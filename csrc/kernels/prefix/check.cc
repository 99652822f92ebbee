// prefix_match for Python: take the arrays | compare them | round down to whole pages.
#include <algorithm>

#include "binding/ffi.h"
#include "binding/method.h"
#include "kernels/prefix/host.h"

namespace commlib::kernels {
namespace {

namespace python = binding::python;
using binding::Array;
using python::Object;

size_t shared(const Array& a, const Array& b) {
  const size_t count = std::min(a.count, b.count);
  const auto *a32 = static_cast<const int32_t*>(a.data), *b32 = static_cast<const int32_t*>(b.data);
  const auto *a64 = static_cast<const int64_t*>(a.data), *b64 = static_cast<const int64_t*>(b.data);
  if (a.wide) return b.wide ? prefix_match(a64, b64, count) : prefix_match(a64, b32, count);
  return b.wide ? prefix_match(a32, b64, count) : prefix_match(a32, b32, count);
}

int64_t in_pages(size_t same, int64_t page_size) {
  if (page_size < 1)
    fail("ValueError", "page_size is ", page_size, ", but a page has 1 token or more");
  const auto tokens = static_cast<int64_t>(same);
  return page_size == 1 ? tokens : tokens - tokens % page_size;
}

int64_t match(const Array& a, const Array& b, int64_t page_size) {
  return in_pages(shared(a, b), page_size);
}

// A tensor of what `match` gives for each of the keys.
Object* match_many(const Array& query, Object* keys, int64_t page_size) {
  const python::Size many = PySequence_Size(keys);
  if (many < 0) throw python::Raised();
  binding::Fresh lengths(static_cast<size_t>(many), true);
  for (python::Size i = 0; i < many; ++i) {
    const python::Owned item(PySequence_GetItem(keys, i));
    const Array key(item.get(), {"keys", 0, "prefix_match_many", i});
    lengths.as<int64_t>()[i] = in_pages(shared(query, key), page_size);
  }
  return lengths.release();
}

COMMLIB_FFI_FUNCTION(prefix_match, match, "a, b, page_size")

void use(const std::string& isa) {
  if (!prefix_use(isa.c_str()))
    fail("Unsupported", "this CPU does not have x86-64-", isa, "; unset COMMLIB_ISA");
}

COMMLIB_MODULE(module) {
  module.add({
      COMMLIB_METHOD("prefix_match", match, "a, b, page_size"),
      COMMLIB_METHOD("prefix_match_many", match_many, "query, keys, page_size",
                     "Sequence[Integers]; Tensor"),
      COMMLIB_METHOD("prefix_use", use, "isa"),
  });
}

}  // namespace
}  // namespace commlib::kernels
