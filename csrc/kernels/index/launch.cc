// index on a GPU: how a call is divided.
#include <algorithm>
#include <memory>

#include "kernels/device_code.h"
#include "kernels/index/host.h"

namespace commlib::kernels {
namespace {

constexpr unsigned kThreads = 128;
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
// Up to here a thread has one load under way, above it two: more blocks help few rows,
// longer pieces for many.
constexpr int64_t kOneLoadBytes = 4 << 20;

struct Shape {
  int lanes, loads;
};
constexpr Shape kShapes[] = {{8, 1}, {32, 1}, {128, 1}, {128, 2}};
constexpr int kWidths[] = {16, 8, 4, 2, 1};

struct Instances {
  std::unique_ptr<DeviceCode> code[std::size(kShapes)][std::size(kWidths)];

  Instances() {
    for (size_t s = 0; s < std::size(kShapes); ++s)
      for (size_t w = 0; w < std::size(kWidths); ++w)
        code[s][w] = std::make_unique<DeviceCode>(
            "kernels/index/gpu.cu", text("commlib::kernels::index<", kShapes[s].lanes, ", ",
                                         kShapes[s].loads, ", ", kWidths[w], ">"));
  }
};

const Instances& instances() {
  static const auto* const instance = new Instances;
  return *instance;
}

const DeviceCode& finder() {
  static const auto* const instance =
      new DeviceCode("kernels/index/gpu.cu", "commlib::kernels::first_outside<256>");
  return *instance;
}

const DeviceCodes codes([](const DeviceCodes::Show& show) {
  for (const auto& widths : instances().code)
    for (const auto& code : widths) show(*code);
  show(finder());
});

size_t width_of(const IndexJob& job) {
  const uint64_t all = reinterpret_cast<uint64_t>(job.table) | reinterpret_cast<uint64_t>(job.out) |
                       static_cast<uint64_t>(job.stride_bytes) |
                       static_cast<uint64_t>(job.row_bytes);
  size_t w = 0;
  while (all % kWidths[w] != 0) ++w;
  return w;
}

size_t shape_of(const IndexJob& job, int64_t words) {
  if (words <= 8) return 0;
  if (words <= 64) return 1;
  return words <= kThreads || job.count * job.row_bytes <= kOneLoadBytes ? 2 : 3;
}

}  // namespace

void launch_index(IndexJob* job, binding::Device device) {
  const size_t w = width_of(*job);
  const int64_t words = job->row_bytes / kWidths[w];
  const size_t s = shape_of(*job, words);
  const Shape shape = kShapes[s];
  const int64_t piece = shape.lanes * shape.loads, groups = kThreads / shape.lanes;
  const int64_t pieces = std::max<int64_t>(1, (words + piece - 1) / piece);
  if (pieces > kMaxBlocks)
    fail("Unsupported", "a row of ", job->row_bytes, " bytes is more than one launch can divide");
  // One launch, unless that were more groups than a grid may have.
  const int64_t max_rows = std::max<int64_t>(1, kMaxBlocks / pieces);
  IndexJob part = *job;
  for (int64_t first = 0; first < job->count; first += max_rows) {
    part.count = std::min<int64_t>(max_rows, job->count - first);
    part.ids = static_cast<const unsigned char*>(job->ids) + first * (job->wide ? 8 : 4);
    part.out = job->out + first * job->row_bytes;
    const int64_t blocks = (part.count * pieces + groups - 1) / groups;
    instances().code[s][w]->launch(static_cast<unsigned>(blocks), kThreads, device, &part);
  }
}

int64_t first_outside_on(IndexJob* job, binding::Device device) {
  const Gpu& here = gpu(device.index);
  const ContextGuard guard(here.context);
  const CUstream stream = stream_on(device);
  CUcaptureStatus capturing = kCaptureNone;
  check(cuda().cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing");
  if (capturing != kCaptureNone)
    fail("Unsupported",
         "out_of_range=\"raise\" waits for the GPU, which a graph being captured cannot; pass "
         "\"count\" and ask out_of_range_count() after the replay");
  job->first_bad = reinterpret_cast<unsigned long long*>(here.answer);
  const CUdeviceptr answer = device_pointer(here.answer);
  check(cuda().cuMemsetD8Async(answer, 0xff, sizeof(uint64_t), stream), "cuMemsetD8Async");
  const int64_t blocks = std::min<int64_t>((job->count + 255) / 256, here.multiprocessors * 4);
  finder().launch(static_cast<unsigned>(blocks), 256, device, job);
  int64_t missing = -1;
  check(cuda().cuMemcpyDtoHAsync(&missing, answer, sizeof missing, stream), "cuMemcpyDtoHAsync");
  check(cuda().cuStreamSynchronize(stream), "cuStreamSynchronize");
  return missing;
}

}  // namespace commlib::kernels
