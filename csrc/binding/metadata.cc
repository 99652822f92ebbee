// metadata for Python: take the lengths | take the outputs | look for what does not fit | run.
#include "kernels/metadata.h"

#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <limits>

#include "binding/entry.h"
#include "binding/launches.h"
#include "binding/tensors.h"

namespace commlib::binding {
namespace {

using kernels::MetadataJob;

constexpr i64 kLargest = std::numeric_limits<i32>::max();

// The arguments in their order; those of the outputs are in the order of the Python tuple.
enum Argument { kExtend, kWindow, kSeq, kTopk, kPad, kOutputs };
constexpr int kNumOutputs = 6;
constexpr const char* kNames[kNumOutputs] = {"expanded",  "clipped",       "cu_seqlens",
                                             "positions", "request_index", "total"};
enum Output { kExpanded, kClipped, kCuSeqlens, kPositions, kRequestIndex, kTotal };

bool is_none(const ffi::AnyView& given) {
  return given.type_index() == ffi::TypeIndex::kTVMFFINone;
}

kernels::Lengths lengths_of(const TensorView& lengths, const char* name) {
  if (lengths.ndim() != 1) {
    fail("ValueError", name, " has ", lengths.ndim(),
         " dimensions, but must have 1, a length for each request; pass ", name, ".flatten()");
  }
  return {bytes_of(lengths), lengths.stride(0), is_wide(lengths, name)};
}

MetadataJob job_of(const ffi::PackedArgs& given, const TensorView& seq, const Place& place) {
  MetadataJob job = {};
  job.seq = lengths_of(seq, "seq_lens");
  job.requests = seq.size(0);
  job.topk = given[kTopk].cast<int64_t>();
  job.window = given[kWindow].cast<int64_t>();
  if (job.topk < 0) fail("ValueError", "topk is ", job.topk, ", but must be 0 or more");
  if (is_none(given[kExtend])) {
    if (job.window < 0)
      fail("ValueError", "extend_lens is ", job.window, ", but must be 0 or more");
    return job;
  }
  const auto extend = given[kExtend].cast<TensorView>();
  place.holds(extend, "extend_lens");
  job.extend = lengths_of(extend, "extend_lens");
  if (extend.size(0) != job.requests) {
    fail("ValueError", "extend_lens has ", extend.size(0), " lengths, but seq_lens ", job.requests,
         "; pass one of each for each request");
  }
  return job;
}

// What the caller wants written; null for the rest.
struct Outputs {
  i32* data[kNumOutputs] = {};
  i64 sizes[kNumOutputs] = {};

  Outputs(const ffi::PackedArgs& given, const Place& place) {
    if (given.size() != kOutputs + kNumOutputs) {
      fail("ValueError", "out has ", given.size() - kOutputs, " entries, but Metadata has ",
           kNumOutputs, "; pass what an earlier call returned");
    }
    for (int i = 0; i < kNumOutputs; ++i) {
      if (!is_none(given[kOutputs + i])) take(i, given[kOutputs + i].cast<TensorView>(), place);
    }
  }

  void has(int output, i64 size) const {
    if (!data[output] || sizes[output] == size) return;
    fail("ValueError", kNames[output], " has ", sizes[output], " elements, but must have ", size,
         "; pass an out of as many requests and tokens");
  }

  // The size of all outputs with one element per token.
  i64 capacity() const {
    i64 capacity = -1;
    for (int i : {kExpanded, kClipped, kPositions, kRequestIndex}) {
      if (!data[i]) continue;
      if (capacity < 0) capacity = sizes[i];
      has(i, capacity);
    }
    return capacity < 0 ? kLargest : capacity;
  }

  void are_apart_from(const TensorView& in, const char* name) const {
    for (int i = 0; i < kNumOutputs; ++i) apart(span_of(i), kNames[i], Span(in), name);
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
  void take(int at, const TensorView& out, const Place& place) {
    place.holds(out, kNames[at]);
    if (!same_type(out.dtype(), {kDLInt, 32, 1}) || out.ndim() != 1 || !out.IsContiguous()) {
      fail("ValueError", kNames[at], " must be int32, contiguous and of 1 dimension, as metadata ",
           "makes it; pass an out of an earlier call");
    }
    data[at] = reinterpret_cast<i32*>(bytes_of(out));
    sizes[at] = out.size(0);
  }
  Span span_of(int at) const {
    const auto* begin = reinterpret_cast<const unsigned char*>(data[at]);
    return {begin, begin + sizes[at] * sizeof(i32)};
  }
};

void fill_in(MetadataJob* job, const Outputs& outputs, const ffi::AnyView& pad) {
  outputs.has(kCuSeqlens, job->requests + 1);
  outputs.has(kTotal, 1);
  job->capacity = outputs.capacity();
  job->expanded = outputs.data[kExpanded];
  job->clipped = outputs.data[kClipped];
  job->cu_seqlens = outputs.data[kCuSeqlens];
  job->positions = outputs.data[kPositions];
  job->request_index = outputs.data[kRequestIndex];
  job->total = outputs.data[kTotal];
  if (is_none(pad)) return;
  const auto value = pad.cast<int64_t>();
  if (value < std::numeric_limits<i32>::min() || value > kLargest)
    fail("ValueError", "pad is ", value, ", but must fit int32, the type of the outputs");
  job->pads = true;
  job->pad = static_cast<i32>(value);
}

i64 counted(const MetadataJob& job) {
  const i64 tokens = kernels::count_tokens(job);
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
  const i64 request = kernels::first_too_long(job);
  if (request == job.requests) return;
  fail("ValueError", "seq_lens[", request, "] is ", job.seq.at(request),
       ", but the outputs are int32; no request may have more than ", kLargest, " tokens");
}

void metadata(ffi::PackedArgs given, ffi::Any*) {
  guarded([&] {
    const auto seq = given[kSeq].cast<TensorView>();
    const Place place(seq);
    MetadataJob job = job_of(given, seq, place);
    const Outputs outputs(given, place);
    fill_in(&job, outputs, given[kPad]);
    outputs.are_apart();
    outputs.are_apart_from(seq, "seq_lens");
    if (job.extend.data) outputs.are_apart_from(given[kExtend].cast<TensorView>(), "extend_lens");
    if (!place.is_cpu()) return launch_metadata(&job, place.device);
    const InterpreterLock lock(static_cast<size_t>(job.capacity) * 4 * sizeof(i32));
    fits(job);
    kernels::fill_metadata(job);
  });
}

// The new tokens of requests on the CPU: what the outputs must have room for.
int64_t metadata_tokens(TensorView extend) {
  return guarded([&] {
    MetadataJob job = {};
    job.extend = lengths_of(extend, "extend_lens");
    job.requests = extend.size(0);
    return static_cast<int64_t>(counted(job));
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("commlib.kernels.metadata", metadata)
      .def("commlib.kernels.metadata_tokens", metadata_tokens);
}

}  // namespace
}  // namespace commlib::binding
