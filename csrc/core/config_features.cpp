#include "core/config_features.hpp"

#include <algorithm>
#include <cmath>

#include "core/feature_values.hpp"
#include "core/legality.hpp"
#include "core/loop_rule.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kNames[kNumConfigRow] = {
    // of the problem
    "log2_rows", "log2_n", "log2_k", "log2_num_groups", "log2_m_alignment", "log2_n_alignment", "log2_k_alignment",
    "num_sms", "log2_memory_bytes", "log2_flops_per_byte", "is_fp8", "m_is_shared", "has_room", "k_is_divided",
    "is_batched", "is_summed", "is_logits", "is_paged", "is_1d1d", "is_per_row", "is_fp32_d", "is_accumulate", "has_c",
    "is_head_split", "is_a_mn_major", "is_b_mn_major", "has_scale_ring", "log2_alignment", "has_blocks", "log2_heads",
    "log2_next_n", "log2_block_kv", "log2_pick_us", "log2_wave_m", "n_mod_256", "k_steps",
    // of the config
    "block_m", "block_n", "row_side", "column_side", "num_stages", "cluster_m", "cluster_n", "split_k", "swap_ab",
    "loop", "scale_warp", "tile_barrier", "reduce_add", "smem_bytes", "blocks_per_sm", "is_pipelined", "d_tiles",
    "two_scale_share", "has_column_scales", "waves", "last_wave_fill", "useful_share", "rounds", "log2_cluster_tiles",
    "steps", "launch_share", "memory_share", "l2_share", "power_share", "sm_share", "math_share", "load_share",
    "latency_share", "epilogue_share", "m_fill", "n_fill", "log_ratio"};

constexpr double kLn2 = 0.6931471805599453;

// The share of the last wave or tile that is filled, of all waves or tiles on average.
double fill(double waves) { return waves / std::ceil(waves); }

}  // namespace

std::vector<std::string> config_feature_names() { return {std::begin(kNames), std::end(kNames)}; }

ConfigFeatures::ConfigFeatures(const Problem& problem, const Estimator& estimator, const AnalyticChoice& pick)
    : problem_(problem),
      tiler_(problem, estimator.sms()),
      estimator_(estimator),
      pick_us_(pick.time_us),
      counts_d_tiles_(op_kind(problem.op).k_is_divided()) {
    const Extent extent = extent_of(problem);
    const OpKind& kind = op_kind(problem.op);
    const double bytes = memory_bytes(problem);
    const double flops = 2.0 * double(extent.rows) * std::max(problem.heads, 1) * double(problem.n) * double(extent.k);
    useful_ = double(extent.rows) * double(problem.n);
    double* out = shared_;
    const auto log2_of = [&](int64_t value) { *out++ = portable_log2(double(std::max<int64_t>(value, 1))); };
    log2_of(rows_per_group(problem)), log2_of(problem.n), log2_of(extent.k), log2_of(problem.num_groups);
    for (int64_t size : {problem.m, problem.n, problem.k}) *out++ = log2_alignment(size);
    *out++ = double(estimator.sms());
    *out++ = portable_log2(bytes);
    *out++ = portable_log2(flops / bytes);
    for (bool flag :
         {is_fp8(problem.op), kind.m_is_shared(), kind.has_room(), kind.k_is_divided(), kind.is_batched(),
          kind.is_summed(), kind.is_logits(), kind.is_paged(), problem.recipe == Recipe::k1d1d,
          problem.recipe == Recipe::kPerRow, problem.d_dtype == DDtype::kFp32, problem.c_mode == CMode::kAccumulate,
          problem.c_mode == CMode::kGeneral, problem.c_mode == CMode::kHeadSplit, problem.a_major == Major::kMn,
          problem.b_major == Major::kMn, has_scale_ring(problem)})
        *out++ = flag ? 1.0 : 0.0;
    *out++ = kind.is_grouped() ? portable_log2(double(problem.alignment)) : 0.0;
    *out++ = problem.group_layout == GroupLayout::kBlocks ? 1.0 : 0.0;
    log2_of(problem.heads), log2_of(problem.next_n), log2_of(problem.block_kv);
    *out++ = portable_log2(pick.time_us);
    *out++ = portable_log2(double(extent.rows) * double(problem.n) / double(estimator.sms()));
    *out++ = double(problem.n % kMaxAlignment);
    *out++ = double(estimator.k_steps());
}

// What a config shares with its tile, whatever its knobs of the main loop; sets what write_own copies.
void ConfigFeatures::rate(const AnalyticChoice& choice) {
    const auto& [tile, facts, time_us] = choice;
    const Tiling tiling = tiler_.divide(tile, facts);
    const EstimateTerms terms = estimator_.terms(tile, facts, tiling);
    const double pieces = double(tiling.cluster_tiles) * double(tiling.parts);
    const double waves = pieces / double(tiling.slots), step = std::max(terms.step_ns, 1.0);
    const double padded = double(tiling.m_tiles * tile.block_m) * double(tiling.n_tiles * tile.block_n);
    const double inv_total = 1.0 / time_us;
    blocks_per_sm_ = double(tiling.blocks_per_sm);
    double* out = tile_features_;
    // Trees of other op kinds were fitted before there was a second tile of D.
    *out++ = double(counts_d_tiles_ ? facts.d_tiles : std::min<int8_t>(facts.d_tiles, 1));
    *out++ = facts.has_two_scales ? two_scale_share(problem_.n, tile.block_n, tiling.n_tiles) : 0.0;
    *out++ = facts.has_column_scales ? 1.0 : 0.0;
    *out++ = waves;
    *out++ = fill(waves);
    *out++ = useful_ / padded;
    *out++ = tiling.rounds;
    *out++ = portable_log2(pieces);
    *out++ = terms.steps;
    for (double us : {terms.launch_us + terms.split_us, terms.memory_us, terms.l2_us, terms.power_us, terms.sm_us})
        *out++ = us * inv_total;
    for (double ns : {terms.math_ns, terms.load_ns, terms.latency_ns}) *out++ = ns / step;
    *out++ = terms.epilogue_ns / (terms.steps * step + terms.epilogue_ns + 1.0);
    *out++ = fill(double(rows_per_group(problem_)) / tile.block_m);
    *out++ = fill(double(problem_.n) / tile.block_n);
    *out++ = kLn2 * portable_log2(time_us / pick_us_);
}

template <typename Number>
void ConfigFeatures::write_own(const AnalyticChoice& choice, Number* out, size_t stride) {
    const Config& config = choice.config;
    if (!rated_.has_value() || !has_same_tile(*rated_, config)) rate(choice);
    rated_ = config;
    const auto put = [&](double value) { *out = Number(value), out += stride; };
    for (int value : {config.block_m, config.block_n, row_side(config), column_side(config), config.num_stages,
                      config.cluster_m, config.cluster_n, config.split_k, config.swap_ab})
        put(value);
    for (const LoopKnob& knob : kLoopKnobs) put(config.*knob.member);
    put(double(smem_bytes_of_one_d_tile(problem_, config)));
    put(blocks_per_sm_);
    put(is_pipelined(problem_, config) ? 1.0 : 0.0);
    for (double value : tile_features_) put(value);
}

template void ConfigFeatures::write_own(const AnalyticChoice& choice, float* out, size_t stride);
template void ConfigFeatures::write_own(const AnalyticChoice& choice, double* out, size_t stride);

}  // namespace deep_gemm
