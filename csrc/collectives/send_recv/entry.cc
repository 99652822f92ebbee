// send and recv for Python, and both at once.
#include "binding/calls.h"

namespace commlib::binding {
namespace {

void send(Target& target, const Tensor& x_tensor, int64_t dst) {
  const Buffer x(target, x_tensor, "x");
  target.open();
  rank_in_world(dst, "dst", target.world());
  target.send(x, static_cast<int>(dst));
}

void recv(Target& target, const Tensor& x_tensor, int64_t src) {
  const Buffer x(target, x_tensor, "x");
  target.open();
  rank_in_world(src, "src", target.world());
  target.writes(x_tensor);
  target.receive(x, static_cast<int>(src));
}

void send_recv(Target& target, const Tensor& x_tensor, int64_t dst, const Tensor& out_tensor,
               int64_t src) {
  const Buffer x(target, x_tensor, "x"), out(target, out_tensor, "out");
  target.open();
  rank_in_world(dst, "dst", target.world());
  rank_in_world(src, "src", target.world());
  if (x.data == out.data && x.count > 0)
    fail("ValueError", "send_recv cannot run in place; pass another out");
  same_or_apart(x, out);
  target.writes(out_tensor);
  target.send_receive(x, static_cast<int>(dst), out, static_cast<int>(src));
}

COMMLIB_CALL(send, "x, dst");
COMMLIB_CALL(recv, "x, src");
COMMLIB_CALL(send_recv, "x, dst, out, src");

}  // namespace
}  // namespace commlib::binding
