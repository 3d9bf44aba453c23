#include "core/logits.hpp"

#include <algorithm>
#include <numeric>

#include "core/legality.hpp"
#include "core/text.hpp"

namespace deep_gemm {
namespace {

// Registers of a math thread with two and with three math warpgroups, beside what it needs for any tile: half a column
// each for accumulators, a quarter for the weights of a tile's heads, five for the rows of each group of tokens. Only
// candidates with 384 columns and more may spill; a sweep drops those that do.
constexpr int kRegistersTwoGroups = 205, kRegistersThreeGroups = 140, kRegistersPerRows = 5;
constexpr int kLanes = 4;  // a group of tokens is divided among the four lanes of a quad
// Tiles of queries in shared memory: short rows of a causal prefill wait for them.
constexpr int kFewestQueryStages = 2, kMostQueryStages = 4;
// Stages; where the estimate sees no difference, the first one is taken. Of a paged call 9 take 1 % less time than 12,
// and 20 and 24 take 1 to 3 % more (H200).
constexpr int kRings[] = {12, 10, 9, 8, 6}, kPagedRings[] = {9, 12, 10, 8, 6};

int heads_of_tile(const Problem& problem, const Config& config) { return config.block_m * problem.heads; }

LogitsRule broken_tile(const Problem& problem, const Config& config) {
    if (config.cluster_m * config.cluster_n * config.split_k != 1 || config.swap_ab != 0 || has_loop_knobs(config))
        return LogitsRule::kKnobs;
    if (config.block_m < 1 || config.block_m > kMaxTokens) return LogitsRule::kTokens;
    if (op_kind(problem.op).is_paged() && problem.next_n % config.block_m != 0) return LogitsRule::kNextN;
    const bool is_whole = config.block_n % kKeysPerStage == 0;
    if (!is_whole || key_groups(config) < kMinKeyGroups || key_groups(config) > kMaxKeyGroups) return LogitsRule::kKeys;
    if (config.block_k != kBlockK) return LogitsRule::kBlockK;
    const bool is_divided = config.num_stages > 0 && config.num_stages % key_groups(config) == 0;
    if (!is_divided || config.num_stages > kMaxStages) return LogitsRule::kStages;
    return logits_columns(problem, config) == 0 ? LogitsRule::kColumns : LogitsRule::kNone;
}

int64_t shared_bytes(const Problem& problem, const Config& config, int query_stages) {
    const int64_t heads = heads_of_tile(problem, config), stages = config.num_stages;
    const int64_t ring = stages * kKeysPerStage * (problem.k + 4);
    const int64_t query =
        align_up(heads * problem.k, kSmemAlignment) + align_up(heads * 4, 128) + align_up(16 + 8 * config.block_m, 128);
    const int64_t barriers = 128 + align_up(8 * (2 * stages + 2 * query_stages), 128);
    return kSmemAlignment + query_stages * query + ring + barriers;
}

// Tokens that fill the lanes of a quad, or the few of a decode step; those of a page are divisors of next_n.
bool is_candidate(const Problem& variant, int tokens) {
    return op_kind(variant.op).is_paged() || tokens <= 2 || tokens % kLanes == 0;
}

}  // namespace

int logits_columns(const Problem& problem, const Config& config) {
    const int heads = heads_of_tile(problem, config);
    const int limit = key_groups(config) == kMinKeyGroups ? kRegistersTwoGroups : kRegistersThreeGroups;
    const int rows = config.block_m / std::gcd(config.block_m, kLanes) * kRegistersPerRows;
    const int most = std::min(kMaxColumns, 2 * (limit - heads / 4 - rows));
    for (int columns = most / 8 * 8; columns >= 8; columns -= 8)
        if (heads % columns == 0) return columns;
    return 0;
}

int logits_query_stages(const Problem& problem, const Config& config) {
    int stages = kMostQueryStages;
    while (stages > kFewestQueryStages && shared_bytes(problem, config, stages) > kSm90SmemBytes) --stages;
    return stages;
}

int64_t logits_smem_bytes(const Problem& problem, const Config& config) {
    return shared_bytes(problem, config, logits_query_stages(problem, config));
}

LogitsRule broken_logits_rule(const Problem& problem, const Config& config, const Device& device) {
    if (const LogitsRule broken = broken_tile(problem, config); broken != LogitsRule::kNone) return broken;
    return logits_smem_bytes(problem, config) > device.smem_bytes ? LogitsRule::kSmem : LogitsRule::kNone;
}

std::string describe_logits(LogitsRule rule, const Problem& problem, const Config& config, const Device& device) {
    switch (rule) {
        case LogitsRule::kNone: return "";
        case LogitsRule::kKnobs: {
            std::string names = "cluster, split_k, swap_ab";
            for (const LoopKnob& knob : kLoopKnobs) names += std::string(", ") + name_knob(knob);
            return names + ": attention logits have none of them; leave them out";
        }
        case LogitsRule::kTokens: return clause("block_m", config.block_m, "must be 1..16 tokens; choose such a tile");
        case LogitsRule::kNextN:
            return clause("block_m", config.block_m,
                          "must divide next_n = " + std::to_string(problem.next_n) + "; choose a smaller tile");
        case LogitsRule::kKeys:
            return clause("block_n", config.block_n, "must be 128 or 192 keys, 64 to a warpgroup; choose one of them");
        case LogitsRule::kBlockK: return clause("block_k", config.block_k, "must be 128; use it");
        case LogitsRule::kStages:
            return clause("num_stages", config.num_stages,
                          "must be a multiple of the " + std::to_string(key_groups(config)) +
                              " warpgroups of block_n, at most 32; choose such a number");
        case LogitsRule::kColumns:
            return clause("block_m", config.block_m,
                          "with " + std::to_string(problem.heads) +
                              " heads the tokens of a tile need more registers than there are; choose a smaller tile");
        default:
            return clause("shared memory", logits_smem_bytes(problem, config),
                          "more than the " + std::to_string(device.smem_bytes) + " bytes of a CTA; use fewer stages");
    }
}

std::vector<Config> get_logits_space(const Problem& variant, const Device& device) {
    std::vector<Config> space;
    const auto& rings = op_kind(variant.op).is_paged() ? kPagedRings : kRings;
    for (int tokens = 1; tokens <= kMaxTokens; ++tokens)
        for (int groups = kMinKeyGroups; groups <= kMaxKeyGroups; ++groups)
            for (int stages : rings) {
                const Config config{.block_m = tokens, .block_n = groups * kKeysPerStage, .num_stages = stages};
                const bool is_legal = broken_logits_rule(variant, config, device) == LogitsRule::kNone;
                if (is_legal && is_candidate(variant, tokens)) space.push_back(config);
            }
    return space;
}

std::vector<Problem> make_logits_representatives(Op op) {
    std::vector<Problem> variants;
    const bool is_paged = op_kind(op).is_paged();
    for (int64_t head_dim : Problem::kHeadSizes)
        for (int32_t heads = int32_t(Problem::kHeadsUnit); heads <= Problem::kMaxHeads; heads += Problem::kHeadsUnit)
            for (int32_t next_n = 1; next_n <= (is_paged ? Problem::kMaxNextN : 1); ++next_n)
                variants.push_back({.op = op,
                                    .m = next_n,
                                    .k = head_dim,
                                    .heads = heads,
                                    .next_n = next_n,
                                    .block_kv = is_paged ? kKeysPerStage : 0});
    return variants;
}

}  // namespace deep_gemm
