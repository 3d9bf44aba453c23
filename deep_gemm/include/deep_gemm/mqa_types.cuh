// What the kernels of attention index logits are passed, and what lies where in their shared memory.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// The host's twin is in csrc/runtime; both sides change together.
struct MqaParams {
    const int* first;     // prefill: first column of each row [S]; paged: context lengths [B] or [B, next_n]
    const int* second;    // prefill: end of the columns of each row [S]; paged: block table [B, max_blocks]
    const int* schedule;  // paged: [num_slots + 1, 2] (mqa_metadata.cuh)
    u64 unused;           // 0
    void* out;            // [num_tokens, columns]
    i64 out_pitch;        // elements
    i64 lengths_stride, table_stride;  // paged: elements from one row to the next
    u32 num_tokens;       // rows of q and out
    u32 columns;          // columns of out; compressed: the most a row holds
    u32 num_kv;           // prefill: rows of K; paged: columns of the block table
    u32 num_slots;        // paged: slots of the schedule
    u32 flags;
    u32 zero;  // 0, which the compiler does not know: see MqaStages::release
    u32 reserved[2];
};

static_assert(sizeof(MqaParams) == 96, "the host passes 96 bytes");

// MqaParams::flags: every column that is not valid becomes -inf; row i holds its first valid column at 0; a length for
// each token.
constexpr u32 kMqaClean = 1, kMqaCompressed = 2, kMqaTokenLengths = 4;

// The tensor maps of a launch.
struct MqaMaps {
    const TensorMap &q, &kv, &scale, &weights;
};

// Where share `index` of `shares` begins: floor(units * index / shares), without a 64-bit division. shares < 65,536.
__device__ __forceinline__ u32 begin_of_share(u32 units, u32 index, u32 shares) {
    return units / shares * index + units % shares * index / shares;
}

constexpr u32 kMqaTile = 64;  // rows of K in a tile: the rows of a WGMMA, and the unit in which work is divided

// Consecutive tiles of K against one tile of q. `low` and `high` bound the valid positions of token `lane` of the tile.
struct MqaSegment {
    u32 token;      // first token of the tile of q
    u32 position;   // first position of the first tile, a multiple of kMqaTile
    u32 num_tiles;  // 0: there are no more segments
    int low, high;
};

template <class Config>
struct MqaLayout {
    static constexpr u32 kMathGroups = Config::kMathGroups;
    static constexpr u32 kThreads = 128 * (kMathGroups + 1);
    static constexpr u32 kQueryStages = Config::kQueryStages;

    // Tokens go over the four lanes of a quad, which hold two columns each of every eight of an accumulator:
    // kLaneTokens tokens a group of columns, kTokenGroups groups. Row `column` of the tile of q in shared memory is,
    // within a group, head 2 * (column / (2 * L)) + column % 2 of token column / 2 % L, L = kLaneTokens. So a thread's
    // columns belong to one token of each group, and 4 / L lanes share it.
    static constexpr u32 kLaneTokens = gcd(Config::kBlockQ, 4), kTokenGroups = Config::kBlockQ / kLaneTokens;
    static constexpr u32 kAllColumns = Config::kBlockQ * Config::kHeads, kChains = kAllColumns / Config::kColumns;
    static constexpr u32 kGroupColumns = kLaneTokens * Config::kHeads, kGroupPairs = kGroupColumns / 8;
    static constexpr u32 kAccumulators = Config::kColumns / 2, kWeights = kAllColumns / 4;

    static constexpr u32 kQueryBytes = kAllColumns * Config::kHeadDim, kWeightBytes = kAllColumns * 4;
    static constexpr u32 kTileBytes = kMqaTile * Config::kHeadDim, kScaleBytes = kMqaTile * 4;
    static constexpr u32 kQueryPitch = align_up(kQueryBytes, 1024), kWeightPitch = align_up(kWeightBytes, 128);
    // A segment: token, position, tiles, -; low and high of each token.
    static constexpr u32 kSegmentPitch = align_up(16 + 8 * Config::kBlockQ, 128);
    static constexpr u32 kScratchBytes = 128;

    static constexpr u32 kOffsetTiles = kQueryStages * kQueryPitch;
    static constexpr u32 kOffsetScales = kOffsetTiles + Config::kNumStages * kTileBytes;
    static constexpr u32 kOffsetWeights = kOffsetScales + Config::kNumStages * kScaleBytes;
    static constexpr u32 kOffsetSegments = kOffsetWeights + kQueryStages * kWeightPitch;
    static constexpr u32 kOffsetScratch = kOffsetSegments + kQueryStages * kSegmentPitch;
    static constexpr u32 kOffsetBarriers = kOffsetScratch + kScratchBytes;
    static constexpr u32 kNumBarriers = 2 * (Config::kNumStages + kQueryStages);
    static constexpr u32 kSharedBytes = 1024 + kOffsetBarriers + align_up(8 * kNumBarriers, 128);

    // Arrivals. Full barriers: the loading lane, and the bytes that TMA completes. A tile of K is one math warpgroup's,
    // a tile of q all's.
    static constexpr u32 kFullArrivals = 1, kTileArrivals = 4, kQueryArrivals = 4 * kMathGroups;
    static constexpr u32 kMathRegisters = kMathGroups == 2 ? 232 : 152, kLoadRegisters = kMathGroups == 2 ? 40 : 56;

    static_assert(kMathGroups == 2 || kMathGroups == 3, "registers are divided for two or three math warpgroups");
    // What a launch gives each thread, in steps of eight. A warpgroup that asks for more than the others have left of
    // that waits for ever.
    static constexpr u32 kLaunchRegisters = 65536 / kThreads / 8 * 8;
    static_assert(kLoadRegisters + kMathGroups * kMathRegisters <= kLaunchRegisters * (kMathGroups + 1),
                  "warpgroups divide the registers of the launch");
    static_assert(Config::kHeadDim == 32 || Config::kHeadDim == 64 || Config::kHeadDim == 128,
                  "a row of K is one swizzle width");
    static_assert(Config::kHeads % 8 == 0 && Config::kHeads >= 8 && Config::kHeads <= 128,
                  "heads fill whole columns of a quad");
    static_assert(Config::kBlockQ >= 1 && Config::kBlockQ <= 16, "a lane of the loading warp bounds each token");
    static_assert(Config::kColumns % 8 == 0 && Config::kColumns >= 8 && Config::kColumns <= 256,
                  "WGMMA takes N in steps of 8");
    static_assert(kAllColumns % Config::kColumns == 0, "chains of WGMMAs are all alike");
    // A wait names a phase by its parity alone, so who waits must have seen the phase before: tiles of a stage are all
    // the same warpgroup's.
    static_assert(Config::kNumStages % kMathGroups == 0, "math warpgroups do not share stages");
    static_assert(kMqaTile % Config::kPageRows == 0, "a tile is made of whole pages");
    static_assert(Config::kNextN % Config::kBlockQ == 0 || Config::kNextN == 1, "a tile of q lies in one sequence");
    static_assert(kThreads == Config::kThreads, "the host and the kernel count the same threads");
    static_assert(kSharedBytes == Config::kSharedBytes, "the host and the kernel count the same shared memory");
};

}  // namespace deep_gemm
