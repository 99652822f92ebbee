// FlashInfer's all-reduce (its port of TensorRT-LLM's kernels) behind a C function; flashinfer.py says how to build it.
#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"

using namespace flashinfer::trtllm_allreduce_fusion;

extern "C" int flashinfer_all_reduce(int rank, int size, int elements, int hidden, void** workspace, void* x, void* out,
                                     int oneshot, int early, cudaStream_t stream) try {
  AllReduceFusionParams<__nv_bfloat16> params{};
  params.nranks = size;
  params.rank = rank;
  params.size = elements;
  params.hidden_dim = hidden;
  params.workspace = workspace;
  params.allreduce_in = x;
  params.allreduce_out = out;
  params.use_oneshot = oneshot;
  params.stream = stream;
  params.pattern = AllReduceFusionPattern::kAllReduce;
  return allreduce_fusion_op(params, early, true);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return cudaErrorUnknown;
}
