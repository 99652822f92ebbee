// barrier for Python: the host waits too, or goes on where a GPU can wait for it.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void enqueue_barrier(Target& target) {
  Call call;
  call.op = Op::barrier;
  call.dtype = DType::u8;
  target.open();
  target.run(call, 0, {});
}

void barrier(Target& target) {
  enqueue_barrier(target);
  target.finish_barrier();
}

COMMLIB_CALL(barrier, "");
COMMLIB_CALL(enqueue_barrier, "");

}  // namespace
}  // namespace commlib::binding
