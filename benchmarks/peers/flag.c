// Two ranks pass a flag back and forth: its one-way time says whether their cores share a cache.
#include <stdint.h>

void pass(volatile uint64_t* line, int rank, uint64_t rounds) {
  volatile uint64_t* mine = line + 16 * rank;  // 128 bytes apart: neighbouring lines are fetched in pairs
  volatile uint64_t* theirs = line + 16 * (1 - rank);
  const uint64_t start = *mine;
  for (uint64_t i = 1; i <= rounds; ++i) {
    if (rank == 0) __atomic_store_n(mine, start + i, __ATOMIC_RELEASE);
    while (__atomic_load_n(theirs, __ATOMIC_ACQUIRE) < start + i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    if (rank == 1) __atomic_store_n(mine, start + i, __ATOMIC_RELEASE);
  }
}
