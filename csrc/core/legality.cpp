#include "core/legality.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/text.hpp"

namespace deep_gemm {
namespace {

// Two math warpgroups: setmaxnreg divides 168 x 384 registers into 40 x 128 (producer) + 232 x 256. One: a thread of
// 256 may use 255, and what the compiler keeps for itself is left out.
constexpr int kRegisterLimitTwoWarpgroups = 232, kRegisterLimitOneWarpgroup = 248;
// Addresses, descriptors, scales and loop state beside the accumulators. A pipelined tile keeps fewer of them live at
// once. Tiles at the limit (64x144 and 128x128 pipelined, 128x192, 256x128) compile without spills.
constexpr int kRegisterOverhead = 40, kPipelinedRegisterOverhead = 16, kPeerRegisters = 12;
// Two partial accumulators of more columns do not fit beside the final one. Swapped tiles gain more from few registers,
// which let several CTAs share an SM, than from two accumulators (H200, m 64, n 2112, k 7168, split 4: 9.9 us with
// one, 14.5 with two).
constexpr int kMaxPipelinedColumnsOneWarpgroup = 144, kMaxPipelinedColumnsTwoWarpgroups = 128;
constexpr int kMaxPipelinedScaledColumns = 128, kMaxPipelinedSwappedColumns = 32;
static_assert(kMaxColumnsOfOne == kRegisterLimitOneWarpgroup - kRegisterOverhead,
              "one warpgroup takes as many columns as its registers, for each a half of two accumulators");
constexpr int kMaxHeldRegisters = 176;  // accumulators and column scales; beyond it promotion reads the scales late
constexpr int kRegisterUnit = 8;        // a thread's registers are allocated in steps of this

// The rules, in the order in which they are reported; each is one clause of legality.
enum class Rule {
    kNone,
    kArchitecture,
    kLogits,
    kClusterKnob,
    kSplitKnob,
    kSwapKnob,
    kSwap,
    kRows,
    kColumns,
    kBlockK,
    kHalfColumns,
    kStages,
    kCluster,
    kClusterSwap,
    kClusterBlockN,
    kSplit,
    kSplitCluster,
    kSplitRows,
    kSplitSms,
    kSplitInvariant,
    kMajorTile,
    kAlignment,
    kClusterSms,
    kScaleBlocks,
    kLoop,
    kScaleWarp,
    kTileBarrier,
    kReduceAdd,
    kRegisters,
    kSmem
};

bool is_cluster_shape(const Config& config) {
    const bool in_range =
        config.cluster_m >= 1 && config.cluster_m <= 2 && config.cluster_n >= 1 && config.cluster_n <= 2;
    return in_range && config.cluster_m * config.cluster_n <= 2;
}

// Knobs that the op kind leaves at their default.
Rule broken_knob_rule(const Problem& problem, const Config& config) {
    const WordSet<Knob> knobs = op_kind(problem.op).knobs;
    if (!knobs.has(Knob::kClusters) && config.cluster_m * config.cluster_n > 1) return Rule::kClusterKnob;
    if (!knobs.has(Knob::kSplitK) && config.split_k > 1) return Rule::kSplitKnob;
    if (!knobs.has(Knob::kSwapAb) && config.swap_ab != 0) return Rule::kSwapKnob;
    return Rule::kNone;
}

Rule broken_tile_rule(const Problem& problem, const Config& config) {
    const int rows = row_side(config), columns = column_side(config);
    if (config.swap_ab != 0 && config.swap_ab != 1) return Rule::kSwap;
    if (rows != 64 && rows != 128 && rows != 256) return Rule::kRows;
    if (columns < 8 || columns > kMaxColumns || columns % 8 != 0) return Rule::kColumns;
    if (config.block_k != stage_k(problem.op)) return Rule::kBlockK;
    if (columns_per_warpgroup(config) % 8 != 0) return Rule::kHalfColumns;
    if (config.num_stages < kMinStages || config.num_stages > kMaxStages) return Rule::kStages;
    if (has_two_scales(problem, config) && max_b_scale_blocks(columns_per_warpgroup(config)) > 2)
        return Rule::kScaleBlocks;
    return Rule::kNone;
}

Rule broken_cluster_rule(const Problem& problem, const Config& config) {
    if (!is_cluster_shape(config)) return Rule::kCluster;
    if (config.swap_ab != 0 && config.cluster_m * config.cluster_n > 1) return Rule::kClusterSwap;
    // Each CTA of the pair loads half of B, and half a tile must keep the 8-row swizzle pattern.
    if (config.cluster_m == 2 && config.block_n % 16 != 0) return Rule::kClusterBlockN;
    // An MN-major tile comes in boxes of 64 of its rows.
    const bool is_mn_a = problem.a_major == Major::kMn, is_mn_b = problem.b_major == Major::kMn;
    if ((is_mn_a && config.block_m % 64 != 0) || (is_mn_b && config.block_n % 64 != 0)) return Rule::kMajorTile;
    if (!fits_alignment(group_alignment(problem), config)) return Rule::kAlignment;
    return Rule::kNone;
}

Rule broken_split_rule(const Problem& problem, const Config& config) {
    if (config.split_k == 1) return Rule::kNone;
    if (config.split_k != 2 && config.split_k != 4 && config.split_k != kMaxSplitK) return Rule::kSplit;
    if (config.cluster_m * config.cluster_n > 1) return Rule::kSplitCluster;
    if (mmas_per_warpgroup(config) > 1) return Rule::kSplitRows;
    if (problem.num_sms != 0) return Rule::kSplitSms;
    return problem.batch_invariant ? Rule::kSplitInvariant : Rule::kNone;
}

Rule broken_loop_rule(const Problem& problem, const Config& config) {
    const bool has_stage_scales = has_scale_vectors(problem) && !has_scale_ring(problem);
    if (config.loop != 0 && (!has_scale_vectors(problem) || config.swap_ab != 0)) return Rule::kLoop;
    if (config.scale_warp != 0 && (!has_stage_scales || problem.recipe != Recipe::k1d2d)) return Rule::kScaleWarp;
    if (config.tile_barrier != 0 && math_warpgroups(config) == 1) return Rule::kTileBarrier;
    const bool may_add = problem.c_mode == CMode::kAccumulate && is_staged(problem, config);
    return config.reduce_add != 0 && !may_add ? Rule::kReduceAdd : Rule::kNone;
}

// Registers of the accumulators, and of the column scales that a thread would hold beside them.
struct HeldRegisters {
    int accumulators, scales;
    bool may_be_late;
    bool are_scales_late() const { return may_be_late && scales > 0 && accumulators + scales > kMaxHeldRegisters; }
};

HeldRegisters held_registers(const Problem& problem, const Config& config) {
    const int columns = columns_per_warpgroup(config), partials = is_pipelined(problem, config) ? 2 : 1;
    return {(mmas_per_warpgroup(config) + partials) * columns / 2,
            has_column_scales(problem, config) ? partials * columns / 4 : 0, config.loop == 0};
}

Rule broken_room_rule(const Problem& problem, const Config& config, const Device& device) {
    const int limit = math_warpgroups(config) == 1 ? kRegisterLimitOneWarpgroup : kRegisterLimitTwoWarpgroups;
    if (estimate_registers(problem, config) > limit) return Rule::kRegisters;
    return smem_bytes(problem, config) > device.smem_bytes ? Rule::kSmem : Rule::kNone;
}

Rule broken_rule(const Problem& problem, const Config& config, const Device& device) {
    if (device.compute_major != 9) return Rule::kArchitecture;
    if (is_logits(problem))
        return broken_logits_rule(problem, config, device) == LogitsRule::kNone ? Rule::kNone : Rule::kLogits;
    for (const auto rule :
         {broken_knob_rule, broken_tile_rule, broken_cluster_rule, broken_split_rule, broken_loop_rule})
        if (const Rule broken = rule(problem, config); broken != Rule::kNone) return broken;
    if (usable_sms(problem, device) < config.cluster_m * config.cluster_n * config.split_k) return Rule::kClusterSms;
    return broken_room_rule(problem, config, device);
}

std::string describe_cluster(Rule rule, const Config& config) {
    switch (rule) {
        case Rule::kCluster:
            return "cluster = " + std::to_string(config.cluster_m) + 'x' + std::to_string(config.cluster_n) +
                   ": must be 1x1, 2x1 or 1x2; choose one of them";
        case Rule::kClusterSwap:
            return clause("swap_ab", 1, "goes with a 1x1 cluster only; leave out cluster_m and cluster_n");
        case Rule::kClusterBlockN:
            return clause("block_n", config.block_n, "must be a multiple of 16 with cluster_m = 2; use cluster_m = 1");
        case Rule::kSplit: return clause("split_k", config.split_k, "must be 1, 2, 4 or 8; choose one of them");
        case Rule::kSplitCluster:
            return clause("split_k", config.split_k, "takes the cluster for itself; use a 1x1 cluster");
        case Rule::kSplitRows:
            return clause("split_k", config.split_k,
                          "needs an MMA row side (block_m, with swap_ab block_n) of at most 128; choose such a tile");
        case Rule::kSplitSms:
            return clause("split_k", config.split_k, "cannot keep to a limit of SMs; use 1 with num_sms");
        case Rule::kSplitInvariant:
            return clause("split_k", config.split_k, "changes the order of sums; use 1 with batch_invariant");
        default:
            return "a cluster of " + std::to_string(config.cluster_m * config.cluster_n * config.split_k) +
                   " CTAs does not fit the SMs that may be used; use a 1x1 cluster without split_k";
    }
}

std::string describe_knob(Rule rule, const Problem& problem, const Config& config) {
    const std::string op(op_name(problem.op));
    if (rule == Rule::kSplitKnob) return clause("split_k", config.split_k, op + " does not split K; use 1");
    if (rule == Rule::kSwapKnob) return clause("swap_ab", config.swap_ab, op + " does not swap its operands; use 0");
    return "cluster = " + std::to_string(config.cluster_m) + 'x' + std::to_string(config.cluster_n) + ": " + op +
           " has no clusters; use 1x1";
}

std::string describe_loop(Rule rule, const Config& config) {
    switch (rule) {
        case Rule::kLoop:
            return clause("loop", config.loop, "needs FP8 with scales per 128 of K, without swap_ab; use 0");
        case Rule::kScaleWarp:
            return clause("scale_warp", config.scale_warp, "needs recipe 1d2d and MN-major scales of A; use 0");
        case Rule::kTileBarrier:
            return clause("tile_barrier", config.tile_barrier, "needs two math warpgroups; use 0 or a larger tile");
        default:
            return clause("reduce_add", config.reduce_add,
                          "needs C that is added onto (c_mode accumulate) and a tile that is staged; use 0");
    }
}

std::string describe(Rule rule, const Problem& problem, const Config& config, const Device& device) {
    switch (rule) {
        case Rule::kNone: return "";
        case Rule::kClusterKnob:
        case Rule::kSplitKnob:
        case Rule::kSwapKnob: return describe_knob(rule, problem, config);
        case Rule::kArchitecture:
            return "compute capability = " + std::to_string(device.compute_major) + '.' +
                   std::to_string(device.compute_minor) + " (" + device.name +
                   "): the kernels need 9.0; use a Hopper GPU";
        case Rule::kLogits:
            return describe_logits(broken_logits_rule(problem, config, device), problem, config, device);
        case Rule::kSwap: return clause("swap_ab", config.swap_ab, "must be 0 or 1; choose one of them");
        case Rule::kRows:
            return clause(config.swap_ab != 0 ? "block_n" : "block_m", row_side(config),
                          "must be 64, 128 or 256; choose one of them");
        case Rule::kColumns:
            return clause(config.swap_ab != 0 ? "block_m" : "block_n", column_side(config),
                          "must be a multiple of 8 within 8..256; choose such a width");
        case Rule::kBlockK:
            return clause("block_k", config.block_k,
                          "must be " + std::to_string(stage_k(problem.op)) + " for " +
                              std::string(op_name(problem.op)) + ", 128 bytes; use it");
        case Rule::kHalfColumns:
            return clause("block_n", config.block_n,
                          "two math warpgroups take half of the columns each, in steps of 8; choose a multiple of 16");
        case Rule::kStages:
            return clause("num_stages", config.num_stages, "must be within 2..32; choose such a number");
        case Rule::kAlignment:
            return clause("block_m", config.block_m,
                          "must divide the alignment " + std::to_string(problem.alignment) +
                              " of the groups' rows; choose a smaller tile");
        case Rule::kMajorTile: return "an MN-major operand needs a tile side in steps of 64; choose another tile";
        case Rule::kScaleBlocks:
            return clause("block_n", config.block_n,
                          "a math warpgroup may touch at most two 128-column scale blocks; choose another width");
        case Rule::kRegisters:
            return clause("registers", estimate_registers(problem, config),
                          "more than a math thread has; choose a smaller tile");
        case Rule::kLoop:
        case Rule::kScaleWarp:
        case Rule::kTileBarrier:
        case Rule::kReduceAdd: return describe_loop(rule, config);
        case Rule::kSmem:
            return clause("shared memory", smem_bytes(problem, config),
                          "more than the " + std::to_string(device.smem_bytes) + " bytes of a CTA; use fewer stages");
        default: return describe_cluster(rule, config);
    }
}

// A problem of the op kind with every other field at its default or, where that is not legal, at its first legal word.
Problem make_base_problem(Op op) {
    const OpKind& kind = op_kind(op);
    Problem problem{.op = op, .num_groups = kind.is_grouped() ? 1 : 0};
    if (kind.m_is_shared()) problem.alignment = kAnyTileAlignment;
    for (const ProblemField& field : kProblemFields)
        if (field.type == FieldType::kWord) field.set(problem, std::countr_zero(field.legal(kind)));
    return problem;
}

// Every recipe and D with the staged and the direct epilogue. Other scale layouts, and majors where there is a choice,
// forbid more.
std::vector<Problem> make_representatives(Op op) {
    if (op_kind(op).is_logits()) return make_logits_representatives(op);
    std::vector<Problem> variants;
    for (Recipe recipe : {Recipe::k1d2d, Recipe::k1d1d, Recipe::kPerRow})
        for (DDtype d_dtype : {DDtype::kBf16, DDtype::kFp32})
            for (CMode c_mode : {CMode::kNone, CMode::kAccumulate, CMode::kGeneral})
                for (ScaleLayout layout : {ScaleLayout::kMnMajor, ScaleLayout::kAny}) {
                    Problem variant = make_base_problem(op);
                    variant.recipe = recipe, variant.d_dtype = d_dtype, variant.c_mode = c_mode,
                    variant.scale_layout = layout;
                    if (is_consistent(variant)) variants.push_back(variant);
                }
    return variants;
}

}  // namespace

bool is_staged(const Problem& problem, const Config& config) {
    const bool is_plain = problem.c_mode == CMode::kNone || problem.c_mode == CMode::kAccumulate;
    return is_plain && config.split_k == 1 && d_tile_bytes(problem, config) <= kMaxDTileBytes;
}

bool is_pipelined(const Problem& problem, const Config& config) {
    if (!is_fp8(problem.op) || rows_per_warpgroup(config) != 64 || config.loop != 0) return false;
    const int columns = columns_per_warpgroup(config);
    if (has_column_scales(problem, config))
        return columns <= (config.swap_ab != 0 ? kMaxPipelinedSwappedColumns : kMaxPipelinedScaledColumns);
    return columns <=
           (math_warpgroups(config) == 1 ? kMaxPipelinedColumnsOneWarpgroup : kMaxPipelinedColumnsTwoWarpgroups);
}

int estimate_registers(const Problem& problem, const Config& config) {
    if (!is_fp8(problem.op)) return mmas_per_warpgroup(config) * column_side(config) / 2 + kRegisterOverhead;
    const HeldRegisters held = held_registers(problem, config);
    const int overhead = is_pipelined(problem, config) ? kPipelinedRegisterOverhead : kRegisterOverhead;
    // The unrolled loop makes the products of scales beside them; in a cluster the widest tiles then spill.
    const bool has_peers = config.cluster_m * config.cluster_n > 1;
    const int peers = config.loop != 0 && held.scales > 0 && has_peers ? kPeerRegisters : 0;
    return held.accumulators + (held.are_scales_late() ? 0 : held.scales) + overhead + peers;
}

int max_b_scale_blocks(int width) {
    return (width + kScaleBlock - scale_start_step(width) + kScaleBlock - 1) / kScaleBlock;
}

int32_t usable_sms(const Problem& problem, const Device& device) {
    return problem.num_sms == 0 ? device.sm_count : std::min(problem.num_sms, device.sm_count);
}

bool is_legal(const Problem& problem, const Config& config, const Device& device) {
    return broken_rule(problem, config, device) == Rule::kNone;
}

bool is_legal_with_knobs(const Problem& problem, const Config& config, const Device& device) {
    return broken_loop_rule(problem, config) == Rule::kNone && broken_room_rule(problem, config, device) == Rule::kNone;
}

std::string legality_reason(const Problem& problem, const Config& config, const Device& device) {
    return describe(broken_rule(problem, config, device), problem, config, device);
}

std::string impossible_reason(Op op, const Config& config, const Device& device) {
    static const std::vector<std::vector<Problem>> variants = [] {
        std::vector<std::vector<Problem>> all;
        for (Op known : kOps) all.push_back(make_representatives(known));
        return all;
    }();
    for (const Problem& problem : variants[size_t(op)])
        if (is_legal(problem, config, device)) return "";
    return legality_reason(variants[size_t(op)].front(), config, device);
}

int fitting_blocks(int registers, int threads) {
    return kSmRegisters / (int(align_up(registers, kRegisterUnit)) * threads);
}

int blocks_per_sm(const Problem& problem, const Config& config) {
    // Two math warpgroups divide all registers of an SM among themselves.
    if (math_warpgroups(config) > 1 || is_logits(problem)) return 1;
    const int64_t by_registers = fitting_blocks(estimate_registers(problem, config), num_threads(problem, config)),
                  by_smem = kSmSmemBytes / (smem_bytes(problem, config) + kSmemReservedBytes);
    return int(std::clamp<int64_t>(std::min(by_smem, by_registers), 1, kMaxBlocksPerSm));
}

}  // namespace deep_gemm
