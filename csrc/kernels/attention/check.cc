// What decode_attention takes: queries | caches | tables | scales. The kernels are torch's on the
// CPU and Triton's on GPUs (commlib/kernels/attention*.py), and rely on it.
#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/scale.h"
#include "kernels/tensors.h"

namespace commlib::kernels {
namespace {

using binding::same_type;

constexpr i64 kMaxDim = 256, kMaxGroup = 64, kSpanStep = 16;
constexpr i64 kMaxTokens = (i64{1} << 31) - (1 << 16);  // of a query: the GPU counts them in int32
constexpr ElementType kF32 = {binding::kFloat, 32, 1}, kF16 = {binding::kFloat, 16, 1},
                      kBf16 = {binding::kBfloat, 16, 1}, kE4m3 = {binding::kFloat8_e4m3fn, 8, 1};

// The arguments as they came, but that caches are [pages, page_size, heads, head_dim].
struct Call {
  const Tensor &out, &q, &k_cache, &v_cache, &tables, &lengths;
  const std::optional<Tensor>&starts, &request_index;
};

std::string form_of(const Tensor& x) {
  return text(binding::name_of(x.type()), " [", shape_of(x), "]");
}

bool same_form(const Tensor& a, const Tensor& b) {
  return same_type(a.type(), b.type()) && a.ndim() == b.ndim() &&
         std::equal(a.shape(), a.shape() + a.ndim(), b.shape());
}

bool last_is_dense(const Tensor& x) {
  return x.ndim() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1;
}

void check_queries(const Tensor& q, const Tensor& out) {
  if (q.ndim() != 3)
    fail("ValueError", "q has ", counted(q.ndim(), "dimension"),
         ", but must have 3: queries, heads, head_dim; reshape it");
  if (!same_type(q.type(), kBf16) && !same_type(q.type(), kF16) && !same_type(q.type(), kF32))
    fail("ValueError", "q is ", binding::name_of(q.type()),
         ", but must be bfloat16, float16 or float32");
  if (q.size(2) < 1 || q.size(2) > kMaxDim)
    fail("ValueError", "head_dim is ", q.size(2), ", but must be from 1 to ", kMaxDim);
  if (!same_form(out, q))
    fail("ValueError", "out is ", form_of(out), ", but q is ", form_of(q), "; they must be equal");
  for (const auto& [name, x] : {std::pair("q", &q), std::pair("out", &out)})
    if (!last_is_dense(*x))
      fail("ValueError", "the last dimension of ", name, " is not contiguous; call contiguous()");
}

void check_cache(const Tensor& cache, const char* name, const Tensor& q) {
  if (cache.ndim() != 4 || cache.size(3) != q.size(2))
    fail("ValueError", name, " has shape [", shape_of(cache),
         "], but must be slots x heads x head_dim, or pages of that, and q has head_dim ",
         q.size(2));
  if (!last_is_dense(cache))
    fail("ValueError", "the last dimension of ", name,
         " is not contiguous; lay the cache out again");
  if (!same_type(cache.type(), q.type()) && !same_type(cache.type(), kE4m3))
    fail("ValueError", name, " is ", binding::name_of(cache.type()), ", but must be of q's type (",
         binding::name_of(q.type()), ") or float8_e4m3fn");
}

void check_caches(const Call& call) {
  const Tensor &k = call.k_cache, &v = call.v_cache;
  check_cache(k, "k_cache", call.q);
  check_cache(v, "v_cache", call.q);
  if (!same_form(k, v))
    fail("ValueError", "k_cache is ", form_of(k), ", but v_cache ", form_of(v),
         "; they must be equal");
  if (k.size(1) == 0)
    fail("ValueError", "the caches have pages of 0 slots, but a page has 1 or more");
  const i64 heads = call.q.size(1), kv_heads = k.size(2);
  if (kv_heads == 0 || heads % kv_heads != 0 || heads <= 0 || heads > kMaxGroup * kv_heads)
    fail("ValueError", "q has ", counted(heads, "head"), " and the caches ", kv_heads,
         ": of q, 1 to ", kMaxGroup, " heads must read each");
}

void check_tables(const Call& call) {
  const Tensor& tables = call.tables;
  const i64 queries = call.q.size(0);
  const std::string of_q = counted(queries, "query", "queries");
  const int dims = call.starts ? 1 : 2;
  if (tables.ndim() != dims)
    fail("ValueError", "tables has ", counted(tables.ndim(), "dimension"), ", but must have ", dims,
         call.starts ? ": the pages of all requests, one after the other" : ": requests x pages");
  if (call.starts && call.starts->ndim() != 1)
    fail("ValueError", "starts has ", counted(call.starts->ndim(), "dimension"),
         ", but must have 1: where each row of tables begins");
  if (tables.size(-1) > kMaxTokens / call.k_cache.size(1))
    fail("ValueError", "tables has room for ", tables.size(-1) * call.k_cache.size(1),
         " tokens of a request, but ", kMaxTokens, " is the limit");
  const auto check = [&](const Tensor& x, const char* name, bool contiguous, bool of_queries) {
    is_wide(x, name);
    if (contiguous && !last_is_dense(x))
      fail("ValueError", name, " is not contiguous; call contiguous()");
    if (of_queries && (x.ndim() != 1 || x.size(0) != queries))
      fail("ValueError", name, " has shape [", shape_of(x), "], but q has ", of_q);
  };
  check(tables, "tables", true, false);
  check(call.lengths, "lengths", false, true);
  if (call.starts) check(*call.starts, "starts", true, false);
  if (call.request_index) check(*call.request_index, "request_index", true, true);
  const i64 rows = call.starts ? call.starts->size(0) : tables.size(0);
  if (!call.request_index && rows < queries)
    fail("ValueError", "tables has ", counted(rows, "row"), ", but q has ", of_q,
         "; pass request_index= if they share rows");
}

void check_scale(const Scale& scale, const char* name, i64 heads) {
  if (!scale.tensor) return;
  const Tensor& x = *scale.tensor;
  if (!same_type(x.type(), kF32) || (x.numel() != 1 && x.numel() != heads) || !x.is_contiguous())
    fail("ValueError", name, " is ", form_of(x),
         ", but must be a number, or float32 with 1 element or ", heads, ", contiguous");
}

void check_decode_attention(const Tensor& out, const Tensor& q, const Tensor& k_cache,
                            const Tensor& v_cache, const Tensor& tables, const Tensor& lengths,
                            const std::optional<Tensor>& starts,
                            const std::optional<Tensor>& request_index, const Scale& k_scale,
                            const Scale& v_scale, int64_t span_tokens) {
  const OneDevice where(q);
  using Named = std::pair<const char*, const Tensor*>;
  for (const auto& [name, x] : {Named("out", &out), Named("k_cache", &k_cache),
                                Named("v_cache", &v_cache), Named("tables", &tables),
                                Named("lengths", &lengths), Named("starts", starts ? &*starts : &q),
                                Named("request_index", request_index ? &*request_index : &q),
                                Named("k_scale", k_scale.tensor ? &*k_scale.tensor : &q),
                                Named("v_scale", v_scale.tensor ? &*v_scale.tensor : &q)})
    where.holds(*x, name);
  const Call call = {out, q, k_cache, v_cache, tables, lengths, starts, request_index};
  check_queries(q, out);
  check_caches(call);
  check_tables(call);
  check_scale(k_scale, "k_scale", k_cache.size(2));
  check_scale(v_scale, "v_scale", k_cache.size(2));
  if (span_tokens < 0 || span_tokens % kSpanStep != 0)
    fail("ValueError", "split_tokens is ", span_tokens, ", but must be a multiple of ", kSpanStep);
}

}  // namespace
}  // namespace commlib::kernels

namespace commlib::binding {

COMMLIB_MODULE(module) {
  module.add({COMMLIB_METHOD("check_decode_attention", kernels::check_decode_attention,
                             "out, q, k_cache, v_cache, tables, lengths, starts, request_index, "
                             "k_scale, v_scale, split_tokens")});
}

}  // namespace commlib::binding
