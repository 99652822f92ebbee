// Draft-extend metadata on a GPU: sum what lies before my requests | scan my requests | a thread
// for each of their tokens | the last block closes the lists.
//
// A block has kRequests of them and needs no other block: each adds up the lengths before its own,
// which for a batch of hundreds is a load or two for each thread. One launch, no wait, nothing read
// back. Cost: two dependent reads of memory, three barriers, and the bytes.
#include "device/memory.cuh"
#include "kernels/metadata/job.h"

namespace commlib::kernels {

constexpr int kRequests = 32;  // a warp scans them

__device__ __forceinline__ i64 extend_of(const MetadataJob& job, i64 request) {
  const i64 length = job.extend.data ? job.extend.at(request) : job.window;
  return length > 0 ? length : 0;
}

__device__ __forceinline__ i64 sum_over_warp(i64 x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// What one block knows of its requests.
struct Slice {
  i64 before;                 // tokens of the requests of earlier blocks
  i64 offset[kRequests + 1];  // tokens of my earlier requests
  i64 first[kRequests];       // `expanded` of a request's first token
};

// The request of a token; lengths that are all alike need no search.
__device__ __forceinline__ int request_of(const Slice& slice, int requests, bool alike, i64 token) {
  if (alike) return static_cast<int>(token / slice.offset[1]);
  int low = 0;
  for (int step = kRequests / 2; step > 0; step /= 2) {
    const int next = low + step;
    if (next < requests && slice.offset[next] <= token) low = next;
  }
  return low;
}

__device__ __forceinline__ i32 at_most(i64 x, i64 limit) {
  return static_cast<i32>(x < limit ? x : limit);
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads) metadata(const __grid_constant__ MetadataJob job) {
  __shared__ Slice slice;
  __shared__ i64 sums[kThreads / 32];
  __shared__ bool alike;
  let_next_start();
  wait_for_stream();
  const i64 mine = i64{blockIdx.x} * kRequests;
  const int requests = at_most(job.requests - mine, kRequests);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  i64 sum = 0;
  if (job.extend.data) {
    for (i64 r = threadIdx.x; r < mine; r += kThreads) sum += extend_of(job, r);
  } else if (threadIdx.x == 0) {
    sum = mine * extend_of(job, 0);
  }
  sum = sum_over_warp(sum);
  if (lane == 0) sums[warp] = sum;
  if (warp == 0) {
    const bool is_one = lane < requests;
    const i64 length = is_one ? extend_of(job, mine + lane) : 0;
    const i64 seq = is_one ? job.seq.at(mine + lane) : 0;
    i64 upto = length;  // inclusive
    for (int d = 1; d < 32; d *= 2) {
      const i64 left = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto += left;
    }
    slice.offset[lane + 1] = upto;
    slice.first[lane] = seq - length + 1;
    if (lane == 0) slice.offset[0] = 0;
    const i64 common = __shfl_sync(~0u, length, 0);
    const bool all = __all_sync(~0u, !is_one || length == common) && common > 0;
    if (lane == 0) alike = all;
  }
  __syncthreads();
  i64 before = 0;
  for (int w = 0; w < kThreads / 32; ++w) before += sums[w];

  const i64 tokens = slice.offset[requests];
  for (i64 t = threadIdx.x; t < tokens && before + t < job.capacity; t += kThreads) {
    const int r = request_of(slice, requests, alike, t);
    i64 expanded = slice.first[r] + (t - slice.offset[r]);
    if (expanded < 0) expanded = 0;
    const i64 to = before + t;
    if (job.expanded) job.expanded[to] = static_cast<i32>(expanded);
    if (job.clipped) job.clipped[to] = at_most(expanded, job.topk);
    if (job.positions) job.positions[to] = static_cast<i32>(expanded > 0 ? expanded - 1 : 0);
    if (job.request_index) job.request_index[to] = static_cast<i32>(mine + r);
  }
  if (job.cu_seqlens && threadIdx.x < requests)
    job.cu_seqlens[mine + threadIdx.x] = static_cast<i32>(before + slice.offset[threadIdx.x]);
  if (mine + requests < job.requests) return;

  const i64 total = before + tokens;
  if (threadIdx.x == 0) {
    if (job.cu_seqlens) job.cu_seqlens[job.requests] = static_cast<i32>(total);
    if (job.total) *job.total = static_cast<i32>(total);
    if (total > job.capacity) atomicAdd(job.counter, static_cast<u64>(total - job.capacity));
  }
  if (!job.pads) return;
  for (i64 t = total + threadIdx.x; t < job.capacity; t += kThreads) {
    if (job.expanded) job.expanded[t] = job.pad;
    if (job.clipped) job.clipped[t] = job.pad;
    if (job.positions) job.positions[t] = job.pad;
    if (job.request_index) job.request_index[t] = job.pad;
  }
}

}  // namespace commlib::kernels
