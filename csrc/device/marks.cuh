// Marks: when a block turns to another phase of its call, for `commlib bench --phases`. They are
// compiled in if COMMLIB_MARKS is defined; else kernels are what they are without this file.
//
// Two tracks in each block: what its first thread does, and the lane that sends tiles by the bulk
// copy engine (device/bulk.cuh). The marks of several calls follow each other until the host takes
// them (csrc/nccl/kernels.h).
#pragma once

#include "commlib/phases.h"
#include "device/memory.cuh"

namespace commlib {

enum Track { kMain, kSender };

#ifdef COMMLIB_MARKS

constexpr u32 kTracks = 2;
constexpr u32 kMarkedBlocks = 256;  // those of higher numbers have no marks
constexpr u32 kMarks = 2047;        // of a track, until the host takes them

struct Mark {
  u64 clock;  // of the multiprocessor; the phase in its upper byte
  u64 ns;     // of the GPU; 0 unless a call begins or ends
};
struct TrackMarks {
  u64 count;  // also of those that had no room
  u64 room;
  Mark marks[kMarks];
};
extern "C" {
__device__ TrackMarks commlib_marks[kTracks][kMarkedBlocks];
}

// What a block keeps of its tracks during a call.
struct Marker {
  u64 count;
  Phase phase;
};
__device__ __forceinline__ Marker& marker(Track track) {
  __shared__ Marker markers[kTracks];
  return markers[track];
}

__device__ __forceinline__ u64 clock_cycles() {
  u64 t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ void put_mark(Track track, Phase phase, u64 clock, u64 ns) {
  constexpr int kPhaseShift = 56;
  Marker& at = marker(track);
  at.phase = phase;
  if (at.count < kMarks)
    commlib_marks[track][blockIdx.x].marks[at.count] = {
        (clock & ((1ull << kPhaseShift) - 1)) | static_cast<u64>(phase) << kPhaseShift, ns};
  ++at.count;
}

// This track is in that phase from now on; set by its own thread, or by all of the block's.
template <Track kTrack = kMain>
__device__ __forceinline__ void mark(Phase phase) {
  if (blockIdx.x >= kMarkedBlocks || (kTrack == kMain && threadIdx.x != 0)) return;
  if (marker(kTrack).phase == phase) return;
  const bool over = phase == Phase::over;
  put_mark(kTrack, phase, clock_cycles(), over ? clock_ns() : 0);
  if (over) commlib_marks[kTrack][blockIdx.x].count = marker(kTrack).count;
}

// wait_for_stream() of a kernel that has marks. Those of the call ahead are there only behind it.
__device__ __forceinline__ void begin_marked() {
  const u64 clock = clock_cycles(), ns = clock_ns();
  wait_for_stream();
  if (blockIdx.x >= kMarkedBlocks || threadIdx.x != 0) return;
  for (u32 track = 0; track < kTracks; ++track) {
    TrackMarks& marks = commlib_marks[track][blockIdx.x];
    marks.room = kMarks;
    marker(static_cast<Track>(track)) = {marks.count, Phase::over};
  }
  put_mark(kMain, Phase::start, clock, ns);
  mark(Phase::publish);
}

#else

template <Track kTrack = kMain>
__device__ __forceinline__ void mark(Phase) {}
__device__ __forceinline__ void begin_marked() { wait_for_stream(); }

#endif

}  // namespace commlib
