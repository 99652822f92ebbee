// send and recv for Python.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void send(Target& target, const Tensor& x_given, int64_t dst) {
  const Buffer x(target, x_given, "x");
  target.open();
  rank_in_world(dst, "dst", target.world());
  target.send(x, static_cast<int>(dst));
}

void recv(Target& target, const Tensor& x_given, int64_t src) {
  const Buffer x(target, x_given, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  target.receive(x, static_cast<int>(src));
}

COMMLIB_CALL(send, "x, dst");
COMMLIB_CALL(recv, "x, src");

}  // namespace
}  // namespace commlib::binding
