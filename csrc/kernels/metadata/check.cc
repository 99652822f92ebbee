// metadata for Python: take the lengths | take the outputs | look for what does not fit | run.
#include <limits>

#include "binding/ffi.h"
#include "binding/interpreter.h"
#include "kernels/counters.h"
#include "kernels/metadata/host.h"
#include "kernels/tensors.h"

namespace commlib::kernels {
namespace {

Counter counter("metadata");

constexpr i64 kLargest = std::numeric_limits<i32>::max();

// In the order of the Python tuple.
constexpr int kNumOutputs = 6;
constexpr const char* kNames[kNumOutputs] = {"expanded",  "clipped",       "cu_seqlens",
                                             "positions", "request_index", "total"};
enum Output { kExpanded, kClipped, kCuSeqlens, kPositions, kRequestIndex, kTotal };

using MaybeTensor = std::optional<Tensor>;

Lengths lengths_of(const Tensor& lengths, const char* name) {
  if (lengths.ndim() != 1) {
    fail("ValueError", name, " has ", lengths.ndim(),
         " dimensions, but must have 1, a length for each request; pass ", name, ".flatten()");
  }
  return {lengths.data(), lengths.stride(0), is_wide(lengths, name)};
}

MetadataJob job_of(const MaybeTensor& extend, int64_t window, const Tensor& seq, int64_t topk,
                   const OneDevice& where) {
  MetadataJob job = {};
  job.seq = lengths_of(seq, "seq_lens");
  job.requests = seq.size(0);
  job.topk = topk;
  job.window = window;
  if (job.topk < 0) fail("ValueError", "topk is ", job.topk, ", but must be 0 or more");
  if (!extend) {
    if (job.window < 0)
      fail("ValueError", "extend_lens is ", job.window, ", but must be 0 or more");
    return job;
  }
  where.holds(*extend, "extend_lens");
  job.extend = lengths_of(*extend, "extend_lens");
  if (extend->size(0) != job.requests) {
    fail("ValueError", "extend_lens has ", extend->size(0), " lengths, but seq_lens ", job.requests,
         "; pass one of each for each request");
  }
  return job;
}

// What the caller wants written; null for the rest.
struct Outputs {
  i32* data[kNumOutputs] = {};
  i64 sizes[kNumOutputs] = {};
  bool wanted[kNumOutputs] = {};

  Outputs(std::initializer_list<const MaybeTensor*> outputs, const OneDevice& where) {
    int at = 0;
    for (const MaybeTensor* out : outputs) {
      if (*out) take(at, **out, where);
      ++at;
    }
  }

  void has(int output, i64 size) const {
    if (!wanted[output] || sizes[output] == size) return;
    fail("ValueError", kNames[output], " has ", counted(sizes[output], "element"),
         ", but must have ", size, "; pass an out of as many requests and tokens");
  }

  // The size of all outputs with one element per token.
  i64 capacity() const {
    i64 capacity = -1;
    for (int i : {kExpanded, kClipped, kPositions, kRequestIndex}) {
      if (!wanted[i]) continue;
      if (capacity < 0) capacity = sizes[i];
      has(i, capacity);
    }
    return capacity < 0 ? kLargest : capacity;
  }

  void are_apart_from(const Tensor& in, const char* name) const {
    for (int i = 0; i < kNumOutputs; ++i) {
      if (!span_of(i).meets(Span(in))) continue;
      fail("ValueError", kNames[i], " overlaps ", name, ", which is read while ", kNames[i],
           " is written; pass another ", kNames[i]);
    }
  }
  void are_apart() const {
    for (int i = 1; i < kNumOutputs; ++i) {
      for (int j = 0; j < i; ++j) {
        if (span_of(i).meets(span_of(j)))
          fail("ValueError", kNames[i], " overlaps ", kNames[j], "; pass another ", kNames[i]);
      }
    }
  }

 private:
  void take(int at, const Tensor& out, const OneDevice& where) {
    where.holds(out, kNames[at]);
    if (!binding::same_type(out.type(), {binding::kInt, 32, 1}) || out.ndim() != 1 ||
        !out.is_contiguous()) {
      fail("ValueError", kNames[at], " must be int32, contiguous and of 1 dimension, as metadata ",
           "makes it; pass an out of an earlier call");
    }
    binding::torch.raise_version(out.object());
    wanted[at] = true;
    data[at] = reinterpret_cast<i32*>(out.data());
    sizes[at] = out.size(0);
  }
  Span span_of(int at) const {
    const auto* begin = reinterpret_cast<const unsigned char*>(data[at]);
    return {begin, begin + sizes[at] * sizeof(i32)};
  }
};

void fill_in(MetadataJob* job, const Outputs& outputs, std::optional<int64_t> pad) {
  outputs.has(kCuSeqlens, job->requests + 1);
  outputs.has(kTotal, 1);
  job->capacity = outputs.capacity();
  job->expanded = outputs.data[kExpanded];
  job->clipped = outputs.data[kClipped];
  job->cu_seqlens = outputs.data[kCuSeqlens];
  job->positions = outputs.data[kPositions];
  job->request_index = outputs.data[kRequestIndex];
  job->total = outputs.data[kTotal];
  if (!pad) return;
  const int64_t value = *pad;
  if (value < std::numeric_limits<i32>::min() || value > kLargest)
    fail("ValueError", "pad is ", value, ", but must fit int32, the type of the outputs");
  job->pads = true;
  job->pad = static_cast<i32>(value);
}

i64 counted(const MetadataJob& job) {
  const i64 tokens = count_tokens(job);
  if (tokens <= kLargest) return tokens;
  fail("ValueError", "extend_lens adds up to more than ", kLargest,
       " tokens, but the outputs are int32; divide the batch");
}

void fits(const MetadataJob& job) {
  const i64 tokens = counted(job);
  if (tokens > job.capacity) {
    fail("ValueError", "the requests have ", tokens, " new tokens, but the outputs hold ",
         job.capacity, "; pass capacity=", tokens, " or more, or a larger out");
  }
  const i64 request = first_too_long(job);
  if (request == job.requests) return;
  fail("ValueError", "seq_lens[", request, "] is ", job.seq.at(request),
       ", but the outputs are int32; no request may have more than ", kLargest, " tokens");
}

void metadata(const MaybeTensor& extend, int64_t window, const Tensor& seq, int64_t topk,
              std::optional<int64_t> pad, const MaybeTensor& expanded, const MaybeTensor& clipped,
              const MaybeTensor& cu_seqlens, const MaybeTensor& positions,
              const MaybeTensor& request_index, const MaybeTensor& total) {
  const OneDevice where(seq);
  MetadataJob job = job_of(extend, window, seq, topk, where);
  const Outputs outputs({&expanded, &clipped, &cu_seqlens, &positions, &request_index, &total},
                        where);
  fill_in(&job, outputs, pad);
  outputs.are_apart();
  outputs.are_apart_from(seq, "seq_lens");
  if (extend) outputs.are_apart_from(*extend, "extend_lens");
  if (!where.is_cpu()) {
    job.counter = counter.on_gpu(where.device.index);
    return launch_metadata(&job, where.device);
  }
  const binding::InterpreterLock lock(static_cast<size_t>(job.capacity) * 4 * sizeof(i32));
  fits(job);
  fill_metadata(job);
}

// The new tokens of requests on the CPU: what the outputs must have room for.
int64_t metadata_tokens(const Tensor& extend) {
  MetadataJob job = {};
  job.extend = lengths_of(extend, "extend_lens");
  job.requests = extend.size(0);
  return counted(job);
}

COMMLIB_FFI_FUNCTION(metadata, metadata,
                     "extend_lens, window, seq_lens, topk, pad, expanded, clipped, cu_seqlens, "
                     "positions, request_index, total")

COMMLIB_MODULE(module) {
  module.add({
      COMMLIB_METHOD("metadata", metadata,
                     "extend_lens, window, seq_lens, topk, pad, expanded, clipped, cu_seqlens, "
                     "positions, request_index, total"),
      COMMLIB_METHOD("metadata_tokens", metadata_tokens, "extend_lens"),
  });
}

}  // namespace
}  // namespace commlib::kernels
