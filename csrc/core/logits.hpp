// The geometry of the kernels of attention logits (deep_gemm/include/deep_gemm/mqa_logits.cuh), which static_assert the
// same numbers. A tile is block_m tokens with all their heads by 64 keys; each math warpgroup of a CTA takes tiles of
// its own, so that a CTA works on block_n = 64 * warpgroups keys at once. A stage of the ring holds 64 keys with their
// scales.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

inline constexpr int kKeysPerStage = 64;  // the rows of a WGMMA
inline constexpr int kMaxTokens = 16;     // of a tile
inline constexpr int kMinKeyGroups = 2, kMaxKeyGroups = 3;

inline constexpr bool is_logits(const Problem& problem) { return op_kind(problem.op).is_logits(); }

// Math warpgroups of a CTA, and its threads with the producer warpgroup.
inline constexpr int key_groups(const Config& config) { return config.block_n / kKeysPerStage; }
inline constexpr int logits_threads(const Config& config) { return 128 + 128 * key_groups(config); }

// Columns of the WGMMA: the most that the registers take of the heads of a tile's tokens, all of which are a multiple
// of it; 0 where there is no such number.
int logits_columns(const Problem& problem, const Config& config);

// Tiles of queries in shared memory: as many as fit beside the ring.
int logits_query_stages(const Problem& problem, const Config& config);

int64_t logits_smem_bytes(const Problem& problem, const Config& config);

// The rules of a config of attention logits, in the order in which they are reported.
enum class LogitsRule : uint8_t { kNone, kKnobs, kTokens, kNextN, kKeys, kBlockK, kStages, kColumns, kSmem };

LogitsRule broken_logits_rule(const Problem& problem, const Config& config, const Device& device);
std::string describe_logits(LogitsRule rule, const Problem& problem, const Config& config, const Device& device);

// Every candidate of problems of this variant, in a fixed order: few tokens first, deeper rings first.
std::vector<Config> get_logits_space(const Problem& variant, const Device& device);

// Problems with the heads that stand for all, for the question whether a config can ever run.
std::vector<Problem> make_logits_representatives(Op op);

}  // namespace deep_gemm
