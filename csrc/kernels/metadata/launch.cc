// metadata on a GPU: a block for every 32 requests.
#include "kernels/device_code.h"
#include "kernels/metadata/host.h"

namespace commlib::kernels {
namespace {

constexpr int64_t kBlockRequests = 32;   // kRequests of gpu.cu
constexpr int64_t kMaxBlocks = 1 << 20;  // each adds up what lies before it: far below is sensible

const DeviceCode& code() {
  static const auto* const instance =
      new DeviceCode("kernels/metadata/gpu.cu", "commlib::kernels::metadata<256>");
  return *instance;
}

const DeviceCodes codes([](const DeviceCodes::Show& show) { show(code()); });

}  // namespace

void launch_metadata(MetadataJob* job, binding::Device device) {
  const int64_t blocks =
      job->requests > 0 ? (job->requests + kBlockRequests - 1) / kBlockRequests : 1;
  if (blocks > kMaxBlocks)
    fail("Unsupported", job->requests, " requests are more than ", kMaxBlocks * kBlockRequests,
         ", which one launch divides; pass fewer");
  code().launch(static_cast<unsigned>(blocks), 256, device, job);
}

}  // namespace commlib::kernels
