// Integers by their size, for host and device: NVRTC has no <cstdint>.
#pragma once

#ifdef __CUDACC__
#define COMMLIB_BOTH __host__ __device__
#else
#define COMMLIB_BOTH
#endif

namespace commlib {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

}  // namespace commlib
