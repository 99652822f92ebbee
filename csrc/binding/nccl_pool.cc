// Torch's pool for symmetric memory: an allocator that hands out parts of the arena of the
// communicator whose `with comm.symmetric():` is entered. Nothing here is collective: the arena is
// registered already.
#include <dlfcn.h>
#include <sys/types.h>

#include <map>
#include <mutex>
#include <vector>

#include "binding/method.h"
#include "binding/nccl_target.h"

namespace commlib::binding {
namespace {

// The arenas whose `with` blocks this thread is in, the innermost last.
thread_local std::vector<NcclTargetPtr> serving;

// Where each block came from: torch gives blocks back at any time, from any thread.
std::mutex owners_mutex;
std::map<void*, NcclTargetPtr>& owners() {
  static auto* const map = new std::map<void*, NcclTargetPtr>;  // outlives torch's last free
  return *map;
}

std::string library_path() {
  Dl_info where;
  const auto* here = reinterpret_cast<const void*>(&library_path);
  return dladdr(here, &where) != 0 && where.dli_fname ? where.dli_fname : "";
}

}  // namespace

void serve_pool(NcclTargetPtr target) {
  if (target) {
    serving.push_back(std::move(target));
  } else if (!serving.empty()) {
    serving.pop_back();
  }
}

COMMLIB_MODULE(module) { module.add({COMMLIB_METHOD("library_path", library_path, "")}); }

}  // namespace commlib::binding

#define COMMLIB_EXPORT extern "C" __attribute__((visibility("default")))

// As torch.cuda.memory.CUDAPluggableAllocator calls them; null makes torch report that memory is
// out.
COMMLIB_EXPORT void* commlib_symmetric_alloc(ssize_t bytes, int, void*) {
  using namespace commlib::binding;
  if (serving.empty() || serving.back()->closed()) return nullptr;
  const NcclTargetPtr target = serving.back();
  try {
    void* block = target->group->arena().allocate(static_cast<size_t>(bytes));
    const std::lock_guard<std::mutex> lock(owners_mutex);
    owners()[block] = target;
    return block;
  } catch (const commlib::Failure&) {
    return nullptr;
  }
}

COMMLIB_EXPORT void commlib_symmetric_free(void* block, ssize_t, int, void*) {
  using namespace commlib::binding;
  NcclTargetPtr target;
  {
    const std::lock_guard<std::mutex> lock(owners_mutex);
    const auto it = owners().find(block);
    if (it == owners().end()) return;
    target = it->second;
    owners().erase(it);
  }
  target->group->arena().free(block);
}
