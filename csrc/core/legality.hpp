// The geometry of the kernels, and the one predicate that says which configs may run. Used by the sweep, the selector, the
// heuristic, the database reader and every launch. It never depends on m, n or k, so a config is legal for every shape.
// The device headers static_assert the same numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// Meaning of a kernel's parameters and launch; part of the kernel hash. Raise it when either changes.
inline constexpr int kLaunchAbi = 1;

inline constexpr int kBlockK = 128;      // elements and bytes of K per stage: one 128-byte swizzle row
inline constexpr int kScaleBlock = 128;  // B is scaled per 128 x 128 block
inline constexpr int kMaxBlockN = 192;   // beyond it the accumulators of no block_m fit the registers
inline constexpr int kMinStages = 2;
inline constexpr int kMaxStages = 32;
inline constexpr int kSmemAlignment = 1024;  // the 128-byte swizzle repeats every 8 rows

// Number of math warpgroups, rows of the tile that one of them owns, and threads of a block (with the producer warpgroup).
inline constexpr int math_warpgroups(const Config& config) { return config.block_m == 64 ? 1 : 2; }
inline constexpr int rows_per_warpgroup(const Config& config) { return config.block_m / math_warpgroups(config); }
inline constexpr int num_threads(const Config& config) { return 128 + 128 * math_warpgroups(config); }

// Whether a math warpgroup starts the next K step's WGMMA before it adds up the last one (two partial accumulators).
bool is_pipelined(const Config& config);

// Independent chains of WGMMAs that a pipelined math warpgroup issues together, one K step each: narrow tiles are bound by the latency of
// a chain, and a second one hides it (H200, m 64, n 576, k 7168, tile 64x16: 9.7 us with two, 10.9 with one, 9.7 with four).
int wgmma_chains(const Config& config);

// Registers that a math thread needs, estimated from above: final and partial accumulators plus addresses and scales.
int estimate_registers(const Config& config);

// Dynamic shared memory of a block: alignment slack, D tile, ring of stages, barriers, ring of scales (table in fp8_gemm.cuh).
int64_t smem_bytes(const Config& config);

// Tiles start at multiples of block_n, so inside a scale block at multiples of this: gcd(block_n, 128), its lowest set bit.
inline constexpr int scale_start_step(int block_n) { return std::min(block_n & -block_n, kScaleBlock); }

// Most B-scale blocks of 128 columns that one tile can touch; the worst start is the last one.
int max_b_scale_blocks(int block_n);

bool is_legal(const Problem& problem, const Config& config, const Device& device);

// Empty when legal, else one sentence with the value, the rule and the remedy.
std::string legality_reason(const Problem& problem, const Config& config, const Device& device);

// SMs that a launch may use: num_sms of the problem, or all of the device.
int32_t usable_sms(const Problem& problem, const Device& device);

}  // namespace deep_gemm
