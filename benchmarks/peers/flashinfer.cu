// FlashInfer's all-reduce (its port of TensorRT-LLM's kernels) behind C functions; flashinfer.py
// says how to build it.
#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"

using namespace flashinfer::trtllm_allreduce_fusion;
using Params = AllReduceFusionParams<__nv_bfloat16>;

static int run(Params params, AllReduceFusionPattern pattern, int early) try {
  params.pattern = pattern;
  return allreduce_fusion_op(params, early, true);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return cudaErrorUnknown;
}

static Params common(int rank, int size, int elements, int hidden, void** workspace, void* x,
                     int oneshot, cudaStream_t stream) {
  Params params{};
  params.nranks = size;
  params.rank = rank;
  params.size = elements;
  params.hidden_dim = hidden;
  params.workspace = workspace;
  params.allreduce_in = x;
  params.use_oneshot = oneshot;
  params.stream = stream;
  return params;
}

extern "C" int flashinfer_all_reduce(int rank, int size, int elements, int hidden, void** workspace,
                                     void* x, void* out, int oneshot, int early,
                                     cudaStream_t stream) {
  Params params = common(rank, size, elements, hidden, workspace, x, oneshot, stream);
  params.allreduce_out = out;
  return run(params, AllReduceFusionPattern::kAllReduce, early);
}

// Sum of all ranks' x, plus the residual, to residual_out; the norm of each row in place of x.
extern "C" int flashinfer_add_norm(int rank, int size, int elements, int hidden, void** workspace,
                                   void* x, void* residual, void* residual_out, void* weight,
                                   float eps, int oneshot, int early, cudaStream_t stream) {
  Params params = common(rank, size, elements, hidden, workspace, x, oneshot, stream);
  params.residual_in = residual;
  params.residual_out = residual_out;
  params.norm_out = x;
  params.rms_gamma = weight;
  params.rms_eps = eps;
  return run(params, AllReduceFusionPattern::kARResidualRMSNorm, early);
}
