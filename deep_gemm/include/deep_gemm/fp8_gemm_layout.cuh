// Geometry of the dense FP8 GEMM (fp8_gemm.cuh), derived from its Config: shared memory, threads, arrivals and bytes of each barrier. A
// mistake fails the build here instead of hanging a GPU.
//
// Shared memory (from a 1,024-byte aligned base):
//   | offset          | what                                   | bytes                            |
//   | 0               | D tiles, one a 64 rows                 | kBlockM * kBlockN * 2, aligned   |
//   | kOffsetStages   | stage s: A tile, then B tile           | kNumStages * kStageBytes         |
//   | kOffsetBarriers | full, empty barriers; those of scales  | 8 each, aligned to 128           |
//   | kOffsetScales   | ring of scales                         | ScaleRing::kBytes                |
#pragma once

#include "deep_gemm/scales.cuh"

namespace deep_gemm {

template <class Config>
struct Fp8GemmLayout {
    static constexpr u32 kBlockM = Config::kBlockM, kBlockN = Config::kBlockN, kBlockK = Config::kBlockK;
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;
    static constexpr u32 kMathGroups = kBlockM == 64 ? 1 : 2;
    static constexpr u32 kThreads = 128 * (kMathGroups + 1);
    static constexpr u32 kGroupRows = kBlockM / kMathGroups;  // rows of a math warpgroup
    static constexpr u32 kWaves = kGroupRows / 64;            // 64-row WGMMAs that cover them

    // A tile starts at a multiple of gcd(kBlockN, 128) inside a 128-column block of B scales.
    static constexpr u32 kScaleUnit = gcd(kBlockN, 128);
    static constexpr u32 kScaleBlocks = ceil_div(kBlockN + 128 - kScaleUnit, 128);

    using Scales = ScaleRing<kBlockM, 4 * kMathGroups, (kScaleBlocks > 1)>;

    static constexpr u32 kBytesA = kBlockM * kBlockK, kBytesB = kBlockN * kBlockK;
    static constexpr u32 kStageBytes = kBytesA + kBytesB;
    static constexpr u32 kOffsetStages = align_up(kBlockM * kBlockN * 2, 1024);
    static constexpr u32 kOffsetBarriers = kOffsetStages + Config::kNumStages * kStageBytes;
    static constexpr u32 kOffsetScaleBarriers = kOffsetBarriers + Config::kNumStages * 16;
    static constexpr u32 kOffsetScales = kOffsetBarriers + align_up(Config::kNumStages * 16 + Scales::kBarrierBytes, 128);
    static constexpr u32 kSharedBytes = 1024 + kOffsetScales + Scales::kBytes;

    static constexpr u32 kFullArrivals = 1;                              // the producer's arrive.expect_tx
    static constexpr u32 kEmptyArrivals = 4 * kMathGroups * kClusterSize;  // every math warp of the cluster
    // Each CTA of a cluster loads its share of the common tile and multicasts it; every CTA receives whole tiles.
    static constexpr u32 kLoadBytesA = kBytesA / Config::kClusterN, kLoadBytesB = kBytesB / Config::kClusterM;

    static_assert(kBlockM == 64 || kBlockM == 128 || kBlockM == 256, "one or two math warpgroups of 64 or 128 rows");
    static_assert(kBlockN % 8 == 0 && kBlockN >= 8 && kBlockN <= 256, "WGMMA takes N in steps of 8");
    static_assert(kBlockK == 128, "promotion happens every 128 of K, and a 128-byte row is the swizzle's width");
    static_assert(Config::kNumStages >= 2, "a ring of one stage would never overlap");
    static_assert(!Config::kPipelined || 2 * Config::kChains <= Config::kNumStages, "two groups of chains hold their stages at a time");
    static_assert(kScaleBlocks <= 2, "a tile may meet two B scales at most");
    static_assert(kClusterSize <= 2, "each CTA loads one half of the shared tile");
    static_assert(Config::kClusterM == 1 || kBlockN % 16 == 0, "half a B tile must be whole 8-row swizzle atoms");
    static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0, "swizzle atoms are 1,024-byte aligned");
    static_assert(kLoadBytesA * Config::kClusterN + kLoadBytesB * Config::kClusterM == kStageBytes, "the loads of a stage fill it");
    static_assert(kSharedBytes == Config::kSharedBytes, "the host and the kernel count the same shared memory");
    static_assert(kThreads == Config::kThreads, "the host and the kernel count the same threads");
};

}  // namespace deep_gemm
