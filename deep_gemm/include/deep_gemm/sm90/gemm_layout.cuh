// Geometry of the GEMM kernels, derived from their Config: sides of the multiplication, shared memory, threads,
// arrivals and bytes of each barrier. A mistake fails the build here instead of hanging a GPU.
//
// WGMMA multiplies 64 rows by up to 256 columns. Without kSwap its rows are rows of D (m) and its columns columns of D
// (n); with kSwap it is the other way round, so that few tokens fill a narrow tile.
//
// Two math warpgroups stand one below the other, each with half of the tile's rows; or, of FP8 tiles of 64 rows that
// are too wide for the registers of one (kBeside), side by side, each with half of the columns.
//
// Shared memory (from a 1,024-byte aligned base):
//   | offset             | what                                          | bytes                           |
//   | 0                  | D tiles (staged epilogue only), by waves      | kTilesD * kTileBytesD           |
//   | kOffsetStages      | stage s: A tile, then B tile                  | kNumStages * kStageBytes        |
//   | kOffsetStageScales | stage s: scales of A, then of B               | kNumStages * kStageScaleBytes   |
//   | kOffsetReceive     | split K: partial sums from all ranks          | kReceiveBytes                   |
//   | kOffsetBarriers    | full, empty; ring; epilogue; block buffers    | 8 each, aligned to 128          |
//   | kOffsetRing        | ring of scales of any layout (kRing)          | ScaleRing::kBytes               |
//   | kOffsetBlocks      | buffers of block scales (kScaleWarp)          | kBlockBuffers * kBlockBytes     |
//   | Config::kSharedBytes - 1024 | tile queue (grouped kernels)         | TileQueue::kBytes               |
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// One of two types.
template <bool kFirst, class First, class Second>
struct Choose {
    using Type = First;
};
template <class First, class Second>
struct Choose<false, First, Second> {
    using Type = Second;
};

template <class Config>
struct GemmLayout {
    static constexpr u32 kBlockM = Config::kBlockM, kBlockN = Config::kBlockN, kBlockK = Config::kBlockK;
    static constexpr bool kSwap = Config::kSwapAB;
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN * Config::kSplitK;
    static constexpr bool kMulticast = Config::kClusterM * Config::kClusterN > 1, kSplit = Config::kSplitK > 1;

    static constexpr u32 kRows = kSwap ? kBlockN : kBlockM, kTileColumns = kSwap ? kBlockM : kBlockN;
    static constexpr u32 kMaxColumnsOfOne = 208;  // as in csrc/core/legality.hpp; else the threads differ (below)
    static constexpr bool kBeside = Config::kElementBytes == 1 && !kSwap && kRows == 64 && kBlockN > kMaxColumnsOfOne;
    static constexpr u32 kMathGroups = kRows == 64 && !kBeside ? 1 : 2, kMathThreads = 128 * kMathGroups;
    static constexpr u32 kThreads = 128 + kMathThreads;
    // Rows and columns of a math warpgroup, and how far its part of the tile lies from that of the one before.
    static constexpr u32 kGroupRows = kBeside ? kRows : kRows / kMathGroups;
    static constexpr u32 kColumns = kBeside ? kTileColumns / 2 : kTileColumns;
    static constexpr u32 kRowStep = kBeside ? 0 : kGroupRows, kColumnStep = kBeside ? kColumns : 0;
    static constexpr u32 kWaves = kGroupRows / 64;      // 64-row WGMMAs that cover its rows
    static constexpr u32 kAccumulators = kColumns / 2;  // a thread's share of 64 x kColumns
    // A main loop knows where its warpgroup's part begins by one number, its row or its column, whichever differs: with
    // a second one, though always 0, the assembler orders the instructions of some kernels otherwise.
    static constexpr u32 kGroupStep = kRowStep + kColumnStep;
    __device__ __forceinline__ static constexpr u32 row_of(u32 first) { return kBeside ? 0 : first; }
    __device__ __forceinline__ static constexpr u32 column_of(u32 first) { return kBeside ? first : 0; }

    // Warps of the producer warpgroup by role. Scales of any layout (kRing) take all warps that have no other.
    static constexpr u32 kLoadWarp = 0, kAccumulateWarp = 1, kBlockWarp = 2, kFindWarp = 3;

    // Scales. 1D2D: a vector for A and one to three block scalars for B; 1D1D: two vectors. A tile starts at a multiple
    // of gcd(kBlockN, 128) inside a 128-column block of B scales, a math warpgroup's part of it at one of kScaleUnit.
    static constexpr bool kHasScales = Config::kRecipe == Recipe::k1D2D || Config::kRecipe == Recipe::k1D1D;
    static constexpr bool kVectorB = Config::kRecipe == Recipe::k1D1D;
    static constexpr bool kRing = kHasScales && Config::kScaleRing, kStageScales = kHasScales && !Config::kScaleRing;
    static constexpr u32 kScaleUnit = gcd(kSwap ? kBlockN : kColumns, 128);
    static constexpr u32 kBlocksB =
        kSwap ? max_of(1, kBlockN / 128) : ceil_div(kBlockN + 128 - gcd(kBlockN, 128), 128);
    static constexpr u32 kBlocksOfGroup = kBeside ? ceil_div(kColumns + 128 - kScaleUnit, 128) : kBlocksB;
    static constexpr u32 kScaleBytesA = kStageScales ? align_up(kBlockM * 4, 128) : 0;
    static constexpr u32 kScaleBytesB =
        kStageScales && !Config::kScaleWarp ? align_up((kVectorB ? kBlockN : kBlocksB) * 4, 128) : 0;
    static constexpr u32 kStageScaleBytes = kScaleBytesA + kScaleBytesB;
    static constexpr u32 kRingLengthB = kVectorB ? kBlockN : max_of(2, kBlocksB), kRingPitch = kBlockM + kRingLengthB;
    static constexpr u32 kRingSteps = 8, kRingBuffers = kRing ? (kMathGroups == 1 ? 4 : 2) : 0;

    // Block scales of B: with their stage, or with kScaleWarp in buffers of up to kBlockSteps K steps of a tile, each
    // block's after the other.
    static constexpr bool kHasBlocks = kStageScales && !kVectorB;
    static constexpr u32 kBlockSteps = 128, kBlockBuffers = Config::kScaleWarp ? 2 : 0;
    // Bytes from one block's scale to the next one's.
    static constexpr u32 kBlockStride = Config::kScaleWarp ? 4 * kBlockSteps : 4;
    static constexpr u32 kBlockBytes = max_of(2, kBlocksB) * 4 * kBlockSteps;      // of a buffer

    // Split K: tile columns are dealt in groups of eight to the ranks, kMaxGroups at most to one.
    static constexpr u32 kGroups = kColumns / 8, kMaxGroups = ceil_div(kGroups, Config::kSplitK);
    static constexpr u32 kReceiveBytes = kSplit ? Config::kSplitK * kMaxGroups * kMathThreads * 16 : 0;

    static constexpr bool kAdds = Config::kCMode == CMode::kAccumulate;
    // Else TMA adds a staged tile onto D.
    static constexpr bool kLoadsC = Config::kStaged && kAdds && !Config::kReduceAdd;
    // Of the producer warpgroup, for the ring: all but the warps that load stages and C.
    static constexpr u32 kCopyThreads = kLoadsC ? 64 : 96;
    static constexpr u32 kBytesD = Config::kFloatD ? 4 : 2;
    static constexpr u32 kTileBytesD = Config::kStaged ? align_up(kBlockM * kBlockN * kBytesD, 1024) : 0;
    static constexpr u32 kBytesA = kBlockM * 128, kBytesB = kBlockN * 128, kStageBytes = kBytesA + kBytesB;
    // D tiles. The host has room for a second one where C is loaded and both fit: C of the next tile then comes while a
    // tile is added up and stored.
    static constexpr u32 kRingBytes = align_up(kRingBuffers * kRingSteps * 4 * kRingPitch, 128);
    static constexpr u32 kBarriersOfD = kSplit ? 1 : kLoadsC ? 2 * kMathGroups : 0;  // with one D tile
    static constexpr u32 kOtherBarriers = 2 * Config::kNumStages + 2 * kRingBuffers + 2 * kBlockBuffers;
    static constexpr u32 kBytesOfOne = 1024 + kTileBytesD + Config::kNumStages * (kStageBytes + kStageScaleBytes) +
                                       kReceiveBytes + align_up((kOtherBarriers + kBarriersOfD) * 8, 128) + kRingBytes +
                                       kBlockBuffers * kBlockBytes;
    static constexpr u32 kTilesD = kLoadsC && Config::kSharedBytes != kBytesOfOne ? 2 : 1;
    static constexpr u32 kOffsetStages = kTilesD * kTileBytesD;
    static constexpr u32 kOffsetStageScales = kOffsetStages + Config::kNumStages * kStageBytes;
    static constexpr u32 kOffsetReceive = kOffsetStageScales + Config::kNumStages * kStageScaleBytes;
    static constexpr u32 kOffsetBarriers = kOffsetReceive + kReceiveBytes;
    static constexpr u32 kOffsetRingBarriers = kOffsetBarriers + Config::kNumStages * 16;
    static constexpr u32 kOffsetReceived = kOffsetRingBarriers + kRingBuffers * 16,
                         kOffsetAccumulation = kOffsetReceived;
    static constexpr u32 kEpilogueBarriers = kTilesD * kBarriersOfD;
    static constexpr u32 kOffsetBlockBarriers = kOffsetReceived + 8 * kEpilogueBarriers;
    static constexpr u32 kNumBarriers = kOtherBarriers + kEpilogueBarriers;
    static constexpr u32 kOffsetRing = kOffsetBarriers + align_up(kNumBarriers * 8, 128);
    static constexpr u32 kOffsetBlocks = kOffsetRing + kRingBytes;
    static constexpr u32 kSharedBytes = 1024 + kOffsetBlocks + kBlockBuffers * kBlockBytes;

    // Copies of block scalars arrive at a stage's full barrier beside the loading thread, which also expects the bytes
    // that TMA completes.
    static constexpr u32 kCopyArrivals = kHasBlocks && !Config::kScaleWarp ? kBlocksB : 0;
    static constexpr u32 kFullArrivals = 1 + kCopyArrivals;
    // Math warps that free a stage.
    static constexpr u32 kEmptyArrivals = 4 * kMathGroups * (kMulticast ? kClusterSize : 1);
    // Each CTA of a multicasting cluster loads its share of the common tile; every CTA receives whole tiles.
    static constexpr u32 kLoadBytesA = kBytesA / Config::kClusterN, kLoadBytesB = kBytesB / Config::kClusterM;
    static constexpr u32 kVectorBytes = kStageScales ? 4 * (kBlockM + (kVectorB ? kBlockN : 0)) : 0;

    static_assert(kRows == 64 || kRows == 128 || kRows == 256, "one or two math warpgroups of 64 or 128 rows");
    static_assert(kColumns % 8 == 0 && kColumns >= 8 && kColumns <= 256, "WGMMA takes N in steps of 8");
    static_assert(!kBeside || kTileColumns % 16 == 0, "either warpgroup's columns are a multiple of 8");
    static_assert(kBlockK * Config::kElementBytes == 128, "a stage's row is the swizzle's width");
    static_assert(Config::kNumStages >= 2, "a ring of one stage would never overlap");
    static_assert(!Config::kScaleWarp || kHasBlocks, "a scale warp copies block scales");
    static_assert(!Config::kTileBarrier || kMathGroups == 2, "one math warpgroup has nobody to meet");
    static_assert(!Config::kReduceAdd || (Config::kStaged && kAdds && Config::kFloatD),
                  "TMA adds staged tiles onto FP32");
    static_assert(!Config::kPipelined || kWaves == 1, "two partial accumulators fit one wave of rows");
    static_assert(!kHasScales || kSwap || kVectorB || kBlocksOfGroup <= 2, "columns meet two B scales at most");
    static_assert(Config::kClusterM * Config::kClusterN <= 2, "each CTA loads one half of the shared tile");
    static_assert(!kSplit || (!kMulticast && kWaves == 1 && !Config::kStaged), "split K exchanges one wave");
    static_assert(Config::kClusterM == 1 || kBlockN % 16 == 0, "half a B tile must be whole swizzle atoms");
    static_assert(!Config::kMnMajorA || kBlockM % 64 == 0, "an MN-major tile is loaded in boxes of 64");
    static_assert(!Config::kMnMajorB || (kBlockN % 64 == 0 && kColumnStep % 64 == 0),
                  "an MN-major tile is loaded in boxes of 64");
    static_assert(kBytesA % 1024 == 0 && kBytesB % 1024 == 0, "swizzle atoms are 1,024-byte aligned");
    static_assert(kSharedBytes == Config::kSharedBytes, "the host and the kernel count the same shared memory");
    static_assert(kThreads == Config::kThreads, "the host and the kernel count the same threads");
};

}  // namespace deep_gemm
