// metadata on a GPU: a block for every 32 requests.
#include "binding/device_code.h"
#include "binding/launches.h"

namespace commlib::binding {
namespace {

constexpr int64_t kBlockRequests = 32;    // kRequests of metadata.cu
constexpr int64_t kMostBlocks = 1 << 20;  // each adds up what lies before it: far below is sensible

}  // namespace

void launch_metadata(kernels::MetadataJob* job, DLDevice device) {
  static const auto* const code =
      new DeviceCode("kernels/metadata.cu", "commlib::kernels::metadata<256>");
  const int64_t blocks =
      job->requests > 0 ? (job->requests + kBlockRequests - 1) / kBlockRequests : 1;
  if (blocks > kMostBlocks)
    fail("Unsupported", job->requests, " requests are more than ", kMostBlocks * kBlockRequests,
         ", which one launch divides; pass fewer");
  job->counter = counter_on(device.device_id, kMetadataCounter);
  code->launch(static_cast<unsigned>(blocks), 256, device, job);
}

}  // namespace commlib::binding
