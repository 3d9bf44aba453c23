// The geometry of the kernels, and the one predicate that says which configs may run. Used by the sweep, the selector,
// the heuristic, the database reader and every launch. It never depends on m, n or k, so a config is legal for every
// shape. The device headers static_assert the same numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/logits.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// Meaning of a kernel's parameters and launch; part of the kernel hash. Raise it when either changes and
// the text of the kernels, which is hashed too, does not.
inline constexpr int kLaunchAbi = 2;

inline constexpr int kStageKBytes = 128;  // bytes of K per stage: one 128-byte swizzle row
inline constexpr int kBlockK = 128;       // K elements of an FP8 stage, and per scale
inline constexpr int kScaleBlock = 128;   // 1d2d scales B per 128 x 128 block
inline constexpr int kMaxColumns = 256;   // columns of a WGMMA
inline constexpr int kMinStages = 2;
// An SM of compute capability 9.0, and the shared memory that the driver reserves for each CTA (CUDA programming
// guide).
inline constexpr int kSmRegisters = 65536;
inline constexpr int64_t kSmSmemBytes = 233472, kSmemReservedBytes = 1024;
inline constexpr int kMaxBlocksPerSm = 3;  // CTAs; more were never faster
inline constexpr int kMaxStages = 32;
inline constexpr int kRingSteps = 8;  // K steps in a buffer of the scale ring: the 32-byte sector of a row-major row
inline constexpr int64_t kTileQueueBytes = 384;             // grouped kernels: tiles on their way to the math warps
inline constexpr int32_t kAnyTileAlignment = 15360;         // every token side of a tile divides it
inline constexpr int kBlockSteps = 128, kBlockBuffers = 2;  // scale_warp: K steps in a buffer of block scales
inline constexpr int kMaxSplitK = 8;                        // CTAs of a cluster that every SM90 GPU places
inline constexpr int kSmemAlignment = 1024;                 // the 128-byte swizzle repeats every 8 rows
inline constexpr int64_t kMaxDTileBytes = 81920;  // staging a larger tile would cost the ring more than it saves

inline constexpr int64_t align_up(int64_t value, int64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

// Rounded up, of values >= 0 and divisors > 0. Selection divides a thousand times. Nearly all operands fit 32 bits,
// where division is several times faster.
inline constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
    const uint64_t sum = uint64_t(value + divisor - 1);
    if (sum >> 32 == 0) return uint32_t(sum) / uint32_t(divisor);
    return int64_t(sum / uint64_t(divisor));
}

inline constexpr int element_bytes(Op op) { return is_fp8(op) ? 1 : 2; }
inline constexpr int stage_k(Op op) { return kStageKBytes / element_bytes(op); }  // the only legal block_k
inline constexpr int64_t count_steps(int64_t k, Op op) { return (k + stage_k(op) - 1) / stage_k(op); }

// Steps of K of a sum over groups, and the parts in which it is added up where neither m nor n may count: a part for
// every 64 steps, at most 32. Each part takes a matrix of D in FP32.
inline constexpr int kStepsOfPart = 64, kMostParts = 32;
inline constexpr int64_t count_sum_steps(const Problem& problem) {
    return problem.num_groups * count_steps(problem.k, problem.op);
}
inline constexpr int64_t count_invariant_parts(const Problem& problem) {
    const int64_t parts = count_sum_steps(problem) / kStepsOfPart;
    return parts < 1 ? 1 : parts > kMostParts ? kMostParts : parts;
}

inline constexpr int d_element_bytes(const Problem& problem) { return problem.d_dtype == DDtype::kFp32 ? 4 : 2; }

// The sides of the tile that the MMA's rows (64 to an instruction) and its columns take.
inline constexpr int row_side(const Config& config) { return config.swap_ab != 0 ? config.block_n : config.block_m; }
inline constexpr int column_side(const Config& config) { return config.swap_ab != 0 ? config.block_m : config.block_n; }

// Whether two math warpgroups stand side by side, each with half of the columns: FP8 tiles of 64 rows that are too wide
// for the registers of one. Others stand one below the other.
inline constexpr int kMaxColumnsOfOne = 208;
inline constexpr bool is_beside(const Config& config) {
    return config.block_k == kBlockK && config.swap_ab == 0 && config.block_m == 64 &&
           config.block_n > kMaxColumnsOfOne;
}

// Number of math warpgroups, rows and columns of the MMA's sides that one of them owns, its MMAs of 64 rows per K step,
// and threads of a CTA (with the producer warpgroup).
inline constexpr int math_warpgroups(const Config& config) {
    return row_side(config) == 64 && !is_beside(config) ? 1 : 2;
}
inline constexpr int rows_per_warpgroup(const Config& config) {
    return is_beside(config) ? row_side(config) : row_side(config) / math_warpgroups(config);
}
inline constexpr int columns_per_warpgroup(const Config& config) {
    return is_beside(config) ? column_side(config) / 2 : column_side(config);
}
inline constexpr int mmas_per_warpgroup(const Config& config) { return rows_per_warpgroup(config) / 64; }
inline constexpr int num_threads(const Problem& problem, const Config& config) {
    return is_logits(problem) ? logits_threads(config) : 128 + 128 * math_warpgroups(config);
}

// Whether the main loop multiplies with vectors of scales, and whether a ring of plain copies (not TMA) brings them.
inline constexpr bool has_scale_vectors(const Problem& problem) {
    return is_fp8(problem.op) && problem.recipe != Recipe::kPerRow && !is_logits(problem);
}
inline constexpr bool has_scale_ring(const Problem& problem) {
    return has_scale_vectors(problem) && problem.scale_layout == ScaleLayout::kAny;
}

// The multiples at which groups of rows start that lie one after the other; 0: there are no such groups.
inline constexpr int32_t group_alignment(const Problem& problem) {
    return op_kind(problem.op).m_is_shared() ? problem.alignment : 0;
}

// Whether the rows of a config's tile always belong to one group: groups start where tiles do. The tiles of a pair may
// be of two groups.
inline constexpr bool fits_alignment(int32_t alignment, const Config& config) {
    return alignment == 0 || alignment % config.block_m == 0;  // most problems need no division
}

// Whether every column of the MMA has a scale of its own.
inline constexpr bool has_column_scales(const Problem& problem, const Config& config) {
    return has_scale_vectors(problem) && (problem.recipe == Recipe::k1d1d || config.swap_ab != 0);
}

// Whether D leaves through a tile in shared memory by TMA; else threads write it to global memory themselves.
bool is_staged(const Problem& problem, const Config& config);

// A D tile in shared memory.
int64_t d_tile_bytes(const Problem& problem, const Config& config);

// Whether C is loaded one tile ahead, into a second D tile: wherever that fits beside the stages into the memory of an
// SM90. Tiles of one math warpgroup have none; they share an SM by twos and threes.
bool has_two_d_tiles(const Problem& problem, const Config& config);

// Whether a math warpgroup starts the next K step's WGMMA before it adds up the last one (two partial accumulators).
bool is_pipelined(const Problem& problem, const Config& config);

// Registers that a math thread needs, estimated from above: final and partial accumulators plus addresses and scales.
int estimate_registers(const Problem& problem, const Config& config);

// Dynamic shared memory of a CTA: alignment slack, D tile, ring of stages with their scales, partial sums of the
// other CTAs of a split, barriers, ring of scales.
int64_t smem_bytes(const Problem& problem, const Config& config);

// The same without the second D tile: the feature of configs, so that trees from before there was one hold.
int64_t smem_bytes_of_one_d_tile(const Problem& problem, const Config& config);

// Tiles, and parts of them side by side, start at multiples of their width, so inside a scale block at multiples of
// this: gcd(width, 128), its lowest set bit.
inline constexpr int scale_start_step(int width) { return std::min(width & -width, kScaleBlock); }

// Most B-scale blocks of 128 columns that a tile, or a math warpgroup's part of one, can touch with this width; the
// worst start is the last one.
int max_b_scale_blocks(int width);

// Whether a math warpgroup can touch two B scales of 1d2d along the columns of the MMA.
inline bool has_two_scales(const Problem& problem, const Config& config) {
    const bool is_plain_1d2d = has_scale_vectors(problem) && problem.recipe == Recipe::k1d2d && config.swap_ab == 0;
    return is_plain_1d2d && max_b_scale_blocks(columns_per_warpgroup(config)) > 1;
}

bool is_legal(const Problem& problem, const Config& config, const Device& device);

// The same for a config of a product that is legal without its knobs of the main loop: only the rules that ask for
// them.
bool is_legal_with_knobs(const Problem& problem, const Config& config, const Device& device);

// Empty when legal, else one sentence with the value, the rule and the remedy.
std::string legality_reason(const Problem& problem, const Config& config, const Device& device);

// Empty when the config is legal for some variant of the op kind, else why it can never run.
std::string impossible_reason(Op op, const Config& config, const Device& device);

// CTAs of `threads` threads, each with so many `registers`, that an SM has registers for.
int fitting_blocks(int registers, int threads);

// CTAs that an SM holds at once, by shared memory and registers, up to kMaxBlocksPerSm.
int blocks_per_sm(const Problem& problem, const Config& config);

// SMs that a launch may use: num_sms of the problem, or all of the device.
int32_t usable_sms(const Problem& problem, const Device& device);

}  // namespace deep_gemm
