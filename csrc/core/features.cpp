#include "core/features.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/feature_values.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kProblemFeatureNames[kNumDenseFeatures + kNumGroupFeatures] = {"log2_m",
                                                                                     "log2_n",
                                                                                     "log2_k",
                                                                                     "log2_m_alignment",
                                                                                     "log2_n_alignment",
                                                                                     "log2_k_alignment",
                                                                                     "num_sms",
                                                                                     "k_steps",
                                                                                     "log2_memory_bytes",
                                                                                     "log2_flops_per_byte",
                                                                                     "log2_heuristic_us",
                                                                                     "is_1d1d",
                                                                                     "is_per_row",
                                                                                     "is_fp32_d",
                                                                                     "is_accumulate",
                                                                                     "has_c",
                                                                                     "is_head_split",
                                                                                     "is_a_mn_major",
                                                                                     "is_b_mn_major",
                                                                                     "has_scale_ring",
                                                                                     "log2_num_groups",
                                                                                     "log2_rows_per_group",
                                                                                     "log2_alignment",
                                                                                     "has_blocks"};
constexpr const char* kLogitsFeatureNames[kNumLogitsFeatures] = {"log2_heads", "log2_next_n", "log2_block_kv"};
constexpr const char* kConfigFeatureNames[kNumConfigFeatures] = {
    "waves", "last_wave_fill", "useful_share", "log2_l2_bytes", "two_scale_share", "log_heuristic_ratio"};

// A flag each, so that the hull of a training set without a variant excludes that variant. batch_invariant is no
// feature: it takes configs away but changes the time of none.
double* write_variant_features(const Problem& problem, double* out) {
    for (bool flag :
         {problem.recipe == Recipe::k1d1d, problem.recipe == Recipe::kPerRow, problem.d_dtype == DDtype::kFp32,
          problem.c_mode == CMode::kAccumulate, problem.c_mode == CMode::kGeneral, problem.c_mode == CMode::kHeadSplit,
          problem.a_major == Major::kMn, problem.b_major == Major::kMn, has_scale_ring(problem)})
        *out++ = flag ? 1.0 : 0.0;
    return out;
}

void write_group_features(const Problem& problem, double* out) {
    *out++ = portable_log2(double(problem.num_groups));
    *out++ = portable_log2(double(rows_per_group(problem)));
    *out++ = portable_log2(double(problem.alignment));
    *out++ = problem.group_layout == GroupLayout::kBlocks ? 1.0 : 0.0;
}

void write_logits_features(const Problem& problem, double* out) {
    *out++ = portable_log2(double(problem.heads));
    *out++ = portable_log2(double(problem.next_n));
    *out++ = portable_log2(double(std::max(problem.block_kv, 1)));
}

void write_problem_features(const Problem& problem, const Estimator& estimator, double heuristic_us, double* out) {
    const Extent extent = extent_of(problem);
    const double bytes = memory_bytes(problem);
    const double flops = 2.0 * double(extent.rows) * std::max(problem.heads, 1) * double(problem.n) * double(extent.k);
    *out++ = portable_log2(double(problem.m));
    *out++ = portable_log2(double(problem.n));
    *out++ = portable_log2(double(problem.k));
    *out++ = log2_alignment(problem.m);
    *out++ = log2_alignment(problem.n);
    *out++ = log2_alignment(problem.k);
    *out++ = double(estimator.sms());
    *out++ = double(estimator.k_steps());
    *out++ = portable_log2(bytes);
    *out++ = portable_log2(flops / bytes);
    *out++ = portable_log2(heuristic_us);
    out = write_variant_features(problem, out);
    if (op_kind(problem.op).is_grouped()) write_group_features(problem, out);
    if (is_logits(problem)) write_logits_features(problem, out);
}

void write_config_features(const Problem& problem, const Estimator& estimator, double heuristic_us,
                           const Config& config, double* out) {
    constexpr double kLn2 = 0.6931471805599453;
    const Tiling tiling = make_tiling(problem, config, estimator.sms());
    const double waves = double(tiling.cluster_tiles) / double(tiling.slots);
    const double padded = double(tiling.m_tiles * config.block_m) * double(tiling.n_tiles * config.block_n);
    *out++ = waves;
    *out++ = waves / std::ceil(waves);
    *out++ = double(extent_of(problem).rows) * double(problem.n) / padded;
    *out++ = portable_log2(l2_read_bytes(problem, config, tiling));
    *out++ = has_two_scales(problem, config) ? two_scale_share(problem.n, config.block_n, tiling.n_tiles) : 0.0;
    *out++ = kLn2 * portable_log2(estimator.time_us(config, tiling) / heuristic_us);
}

}  // namespace

std::string feature_name(Op op, std::span<const Config> portfolio, size_t index) {
    if (index >= kNumDenseFeatures && index < num_problem_features(op) && op_kind(op).is_logits())
        return kLogitsFeatureNames[index - kNumDenseFeatures];
    if (index < num_problem_features(op)) return kProblemFeatureNames[index];
    index -= num_problem_features(op);
    return std::string(kConfigFeatureNames[index % kNumConfigFeatures]) + " of " +
           to_string(portfolio[index / kNumConfigFeatures]);
}

std::vector<std::string> feature_names(Op op, std::span<const Config> portfolio) {
    std::vector<std::string> names;
    for (size_t i = 0; i < num_features(op, portfolio.size()); ++i) names.push_back(feature_name(op, portfolio, i));
    return names;
}

void write_features(const Problem& problem, const Estimator& estimator, const AnalyticChoice& pick,
                    std::span<const Config> portfolio, double* out) {
    write_problem_features(problem, estimator, pick.time_us, out);
    out += num_problem_features(problem.op);
    for (const Config& config : portfolio) {
        write_config_features(problem, estimator, pick.time_us, config, out);
        out += kNumConfigFeatures;
    }
}

std::vector<double> get_features(const Problem& problem, const Device& device, std::span<const Config> portfolio) {
    const Estimator estimator(problem, device);
    std::vector<double> features(num_features(problem.op, portfolio.size()));
    write_features(problem, estimator, choose_analytic(problem, estimator, device), portfolio, features.data());
    return features;
}

}  // namespace deep_gemm
