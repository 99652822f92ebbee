// Metadata of draft-extend attention on the CPU: one pass over the requests, and in each over its
// new tokens.
#include <algorithm>
#include <limits>

#include "kernels/metadata/host.h"

namespace commlib::kernels {
namespace {

constexpr i64 kLargest = std::numeric_limits<i32>::max();

i64 extend_of(const MetadataJob& job, i64 request) {
  return job.extend.data ? std::max<i64>(job.extend.at(request), 0) : job.window;
}

// The new tokens of one request: `count` from `at` on; the first of them sees `first` tokens, if
// that is above 0.
struct Window {
  i64 at, count;
  i32 first, request;
};

void fill_all(const MetadataJob& job, const Window& window) {
  const i32 topk = static_cast<i32>(std::min(job.topk, kLargest));
  for (i64 j = 0; j < window.count; ++j) {
    const i64 at = window.at + j;
    const i32 length = std::max(window.first + static_cast<i32>(j), 0);
    job.expanded[at] = length;
    job.clipped[at] = std::min(length, topk);
    job.positions[at] = std::max(length - 1, 0);
    job.request_index[at] = window.request;
  }
}

void fill_wanted(const MetadataJob& job, const Window& window) {
  const i32 topk = static_cast<i32>(std::min(job.topk, kLargest));
  for (i64 j = 0; j < window.count; ++j) {
    const i64 at = window.at + j;
    const i32 length = std::max(window.first + static_cast<i32>(j), 0);
    if (job.expanded) job.expanded[at] = length;
    if (job.clipped) job.clipped[at] = std::min(length, topk);
    if (job.positions) job.positions[at] = std::max(length - 1, 0);
    if (job.request_index) job.request_index[at] = window.request;
  }
}

}  // namespace

i64 count_tokens(const MetadataJob& job) {
  if (!job.extend.data) {
    if (job.window > kLargest || job.requests > kLargest) return job.requests ? kLargest + 1 : 0;
    return job.window * job.requests;
  }
  i64 total = 0;
  for (i64 request = 0; request < job.requests && total <= kLargest; ++request)
    total += std::min(extend_of(job, request), kLargest + 1);
  return total;
}

i64 first_too_long(const MetadataJob& job) {
  for (i64 request = 0; request < job.requests; ++request) {
    if (job.seq.at(request) > kLargest) return request;
  }
  return job.requests;
}

void fill_metadata(const MetadataJob& job) {
  const bool all = job.expanded && job.clipped && job.positions && job.request_index;
  i64 at = 0;
  if (job.cu_seqlens) job.cu_seqlens[0] = 0;
  for (i64 request = 0; request < job.requests; ++request) {
    const i64 extend = extend_of(job, request);
    // A length below 0 gives what 0 gives: no token sees any.
    const i64 seq = std::max<i64>(job.seq.at(request), 0);
    const Window window = {at, extend, static_cast<i32>(seq - extend + 1),
                           static_cast<i32>(request)};
    all ? fill_all(job, window) : fill_wanted(job, window);
    at += extend;
    if (job.cu_seqlens) job.cu_seqlens[request + 1] = static_cast<i32>(at);
  }
  if (job.total) *job.total = static_cast<i32>(at);
  if (!job.pads) return;
  for (i32* out : {job.expanded, job.clipped, job.positions, job.request_index}) {
    if (out) std::fill(out + at, out + job.capacity, job.pad);
  }
}

}  // namespace commlib::kernels
