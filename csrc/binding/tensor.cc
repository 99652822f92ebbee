#include "binding/tensor.h"

#include <dlfcn.h>

#include <utility>

#include "ffi/abi.h"

namespace commlib::binding {

using python::Argument;
using python::Object;
using python::Owned;

Torch torch;

namespace {

int64_t asked(Object* object, const char* method) {
  const Owned answer(PyObject_CallMethod(object, method, nullptr));
  return python::integer(answer.get(), {method});
}

bool says(Object* object, const char* method) {
  const Owned answer(PyObject_CallMethod(object, method, nullptr));
  return answer.get() == &_Py_TrueStruct;
}

// Where a tensor has the word that its `_cdata` gives; 0: nowhere near its beginning.
ptrdiff_t handle_of(Object* tensor_class) {
  constexpr ptrdiff_t kWords = 6;
  const Owned tensor(PyObject_CallFunctionObjArgs(tensor_class, nullptr));
  const Owned handle(PyObject_GetAttrString(tensor.get(), "_cdata"));
  const auto word = static_cast<uint64_t>(python::integer(handle.get(), {"_cdata"}));
  const auto* words = reinterpret_cast<const uint64_t*>(tensor.get());
  for (ptrdiff_t at = 2; at < kWords; ++at) {
    if (words[at] == word) return at * static_cast<ptrdiff_t>(sizeof(uint64_t));
  }
  return 0;
}

// What makes a tensor of it, as the end of an error.
std::string remedy_for(Object* object, const std::string& name) {
  constexpr size_t kShort = 40;
  const std::string type = python::type_of(object);
  if (type == "ndarray") return text("; e.g. torch.from_numpy(", name, ")");
  const bool numbers = type == "list" || type == "tuple" || type == "int" || type == "float";
  if (!numbers || name == "out") return "";
  const std::string words = python::repr(object);
  return text("; e.g. torch.tensor(", words.size() <= kShort ? words : name, ")");
}

// "torch.sparse_coo on cpu": what keeps torch from giving a tensor's memory.
std::string layout_of(Object* tensor) {
  const Owned layout(PyObject_GetAttrString(tensor, "layout"));
  const Owned device(PyObject_GetAttrString(tensor, "device"));
  const Owned dtype(PyObject_GetAttrString(tensor, "dtype"));
  return text(python::type_of(tensor), " of ", python::repr(dtype.get()), ", layout ",
              python::repr(layout.get()), ", on ", python::str(device.get()));
}

}  // namespace

Torch::Torch(Object* tensor, Object* parameter)
    : tensor(python::again(tensor)), parameter(python::again(parameter)) {
  Object* const capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
  if (!capsule) {
    PyErr_Clear();
    fail("Unsupported", "this torch has no C interface for tensors; install 2.11 or later");
  }
  exchange =
      static_cast<const TensorExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DecRef(capsule);
  if (!exchange) throw python::Raised();
  if (exchange->version.major != kDlpack.major || !exchange->borrow)
    fail("Unsupported", "this torch has another C interface for tensors; install 2.11 or later");
  // In the process already, but of its importer alone.
  if (void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) {
    storage_bytes_ = reinterpret_cast<Ask>(dlsym(library, "aoti_torch_get_storage_size"));
    storage_offset_ = reinterpret_cast<Ask>(dlsym(library, "aoti_torch_get_storage_offset"));
    is_inference_ = reinterpret_cast<bool (*)(const void*)>(
        dlsym(library, "_ZN2at6native12is_inferenceERKNS_6TensorE"));
    bump_version_ = reinterpret_cast<void (*)(const void*)>(
        dlsym(library, "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE"));
  }
  if (storage_bytes_ && storage_offset_) handle_ = handle_of(tensor);
}

int64_t Torch::bytes_from(Object* tensor, int64_t item_bytes) const {
  int64_t bytes = 0, offset = 0;
  if (handle_ > 0) {
    const void* handle = reinterpret_cast<const char*>(tensor) + handle_;
    if (storage_bytes_(handle, &bytes) != 0 || storage_offset_(handle, &offset) != 0) return 0;
  } else {
    const Owned storage(PyObject_CallMethod(tensor, "untyped_storage", nullptr));
    bytes = asked(storage.get(), "nbytes");
    offset = asked(tensor, "storage_offset");
  }
  return bytes - offset * item_bytes;
}

void Torch::raise_version(Object* tensor) const {
  if (!tensor) return;
  if (handle_ > 0 && is_inference_ && bump_version_) {
    const void* handle = reinterpret_cast<const char*>(tensor) + handle_;
    if (!is_inference_(handle)) bump_version_(handle);
    return;
  }
  if (says(tensor, "is_inference")) return;
  const Owned graph(PyImport_ImportModule("torch.autograd.graph"));
  const Owned none(PyObject_CallMethod(graph.get(), "increment_version", "O", tensor));
}

bool Tensor::is_lazy() const { return says(object_, "is_conj") || says(object_, "is_neg"); }

void Tensor::refuse_object(const Argument& argument) const {
  fail("TypeError", argument.name(), argument.function ? " of " : "",
       argument.function ? argument.function : "", " is ", python::described(object_),
       ", but must be a torch.Tensor", remedy_for(object_, argument.name()));
}

void Tensor::refuse_layout(const Argument& argument) const {
  PyErr_Clear();  // torch's words name no argument
  fail("ValueError", argument.name(), " is a tensor without plain memory (", layout_of(object_),
       "), but ", argument.function ? argument.function : "native code",
       " needs dense tensors of plain bytes; convert or view it");
}

void Tensor::refuse_lazy(const std::string& name) const {
  fail("ValueError", name,
       " is a lazy conjugate or negation, which shares the bytes of another tensor; pass ", name,
       says(object_, "is_conj") ? ".resolve_conj()" : ".resolve_neg()");
}

void Tensor::refuse_memory(const std::string& name) const {
  if (says(object_, "_is_zerotensor"))
    fail("ValueError", name, " is a ZeroTensor, which has no memory; pass ", name, ".clone()");
  fail("ValueError", name, " spans ", span_bytes(), " bytes, but its storage has ",
       std::max<int64_t>(0, torch.bytes_from(object_, item_bytes())),
       " from its first element on; its storage was resized: resize it back first");
}

std::string name_of(ElementType type) {
  const int bits = type.bits * type.lanes;
  switch (type.code) {
    case kInt:
      return text("int", bits);
    case kUInt:
      return text("uint", bits);
    case kFloat:
      return text("float", bits);
    case kBfloat:
      return text("bfloat", bits);
    case kComplex:
      return text("complex", bits);
    case kBool:
      return "bool";
    case kFloat8_e4m3fn:
      return "float8_e4m3fn";
    case kFloat8_e5m2:
      return "float8_e5m2";
    default:
      return text(bits, "-bit elements");
  }
}

Object* tensor_over(void* data, int64_t count, ElementType type, Device device,
                    std::function<void()> release) {
  struct Block {
    ManagedTensor tensor;
    int64_t shape, stride;
    std::function<void()> release;
  };
  auto* block = new Block{{}, count, 1, std::move(release)};
  block->tensor.version = kDlpack;
  block->tensor.context = block;
  block->tensor.deleter = [](ManagedTensor* tensor) {
    auto* mine = static_cast<Block*>(tensor->context);
    mine->release();
    delete mine;
  };
  block->tensor.tensor = {data, device, 1, type, &block->shape, &block->stride, 0};
  void* made = nullptr;
  if (torch.exchange->object_of(&block->tensor, &made) != 0) {
    block->tensor.deleter(&block->tensor);
    throw python::Raised();
  }
  return static_cast<Object*>(made);
}

thread_local bool on_stream_of_ffi = false;

void* current_stream(Device device) {
  if (__builtin_expect(on_stream_of_ffi, 0)) return ffi::stream_of(device.type, device.index);
  void* stream = nullptr;
  if (torch.exchange->current_stream(device.type, device.index, &stream) != 0)
    throw python::Raised();
  return stream;
}

Words words_on(Device device, int64_t count) {
  TensorFields like = {nullptr, device, 1, {kInt, 32, 1}, &count, nullptr, 0};
  const auto refuse = [](void* message, const char*, const char* words) {
    *static_cast<std::string*>(message) = words;
  };
  // Torch gives the memory away again in the order of its own stream.
  void* torchs = nullptr;
  if (on_stream_of_ffi && torch.exchange->current_stream(device.type, device.index, &torchs) != 0)
    throw python::Raised();
  if (on_stream_of_ffi && torchs != current_stream(device))
    fail("Unsupported", "this call needs memory of torch's, whose current stream is not that of ",
         "tvm-ffi's environment; make it inside torch.cuda.stream() of the same stream");
  std::string message;
  ManagedTensor* made = nullptr;
  if (torch.exchange->allocate(&like, &made, &message, refuse) != 0)
    fail("RuntimeError", "torch has no memory for ", count, " words on cuda:", device.index, ": ",
         message);
  return Words(made);
}

}  // namespace commlib::binding
