#include "core/heuristic.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/candidates.hpp"
#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/logits_estimate.hpp"
#include "core/loop_rule.hpp"

namespace deep_gemm {
namespace {

// Overlapping costs: close to the largest, a little above it where two are alike. Square roots round the same way on
// every host.
double fourth_power(double us) {
    const double square = us * us;
    return square * square;
}
double add_fourth_powers(const EstimateTerms& terms) {
    return fourth_power(terms.memory_us) + fourth_power(terms.l2_us) + fourth_power(terms.power_us) +
           fourth_power(terms.sm_us);
}
double soft_maximum(double fourth_powers) { return std::sqrt(std::sqrt(fourth_powers)); }

// The product, or a number beyond all tiles that a launch can have: products of three sizes may need more than 64 bits.
int64_t saturating_product(int64_t a, int64_t b) {
    constexpr int64_t kMost = int64_t(1) << 53;
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? kMost : std::min(product, kMost);
}

// Sizes of a power of two, 1 to 8, divide by shifts.
int64_t ceil_shift(int64_t value, int32_t power) { return (value + power - 1) >> std::countr_zero(uint32_t(power)); }

// Clusters of `size` CTAs that run at once, `blocks` CTAs to an SM. A cluster stays within a GPC. A GPC of an SM90 GPU
// has 16 SMs; SMs beyond a multiple of 16 make some GPCs 18 (an H200's 132 SMs hold 32 clusters of eight with two CTAs
// to an SM, not 33).
int64_t count_slots(int32_t sms, int32_t size, int32_t blocks) {
    constexpr int32_t kGpcSms = 16, kLargerGpcSms = 18;
    const int32_t gpcs = sms / kGpcSms, larger = std::min((sms % kGpcSms) / (kLargerGpcSms - kGpcSms), gpcs),
                  shift = std::countr_zero(uint32_t(size));
    if (gpcs == 0 || size <= 2) return sms * blocks >> shift;
    return (gpcs - larger) * (kGpcSms * blocks >> shift) + larger * (kLargerGpcSms * blocks >> shift);
}

double scale_bytes(const Problem& problem) {
    if (!is_fp8(problem.op)) return 0.0;
    const Extent extent = extent_of(problem);
    const double m = double(extent.rows), n = double(problem.n) * double(extent.matrices),
                 blocks_k = double(extent.k) / kScaleBlock;
    if (problem.recipe == Recipe::kPerRow) return 4.0 * (m + n);
    return 4.0 * blocks_k * (m + (problem.recipe == Recipe::k1d1d ? n : n / kScaleBlock));
}

// Tiles of all groups along m, where the host knows their rows.
int64_t count_m_tiles(const Problem& problem, int32_t block_m) {
    const OpKind& kind = op_kind(problem.op);
    if (kind.m_is_shared()) return ceil_div(problem.m, block_m);
    const int64_t groups = kind.is_summed() ? 1 : std::max(problem.num_groups, 1);
    return groups * ceil_div(rows_per_group(problem), block_m);
}

// Whether each group has a D of its own and m rows.
bool has_own_rows(const OpKind& kind) { return kind.k_is_divided() || kind.is_batched(); }

[[noreturn]] void refuse_device(const Device& device) {
    throw Error(
        ErrorKind::kDevice,
        device.name + ": no config is legal on this device; the kernels need a Hopper GPU (compute capability 9.0)");
}

// Tiles whose warpgroups stand side by side get the loop, too, but are rated without it.
bool takes_vector_loop(const Config& config) {
    return config.swap_ab == 0 && config.block_m == 128 && config.block_n >= kMinVectorLoopColumns &&
           config.block_n <= kMaxVectorLoopColumns;
}

}  // namespace

Extent extent_of(const Problem& problem) {
    const int64_t groups = std::max(problem.num_groups, 1);
    const OpKind& kind = op_kind(problem.op);
    if (kind.m_is_shared()) return {problem.m, problem.k, groups};
    if (kind.has_room() || kind.is_batched()) return {groups * rows_per_group(problem), problem.k, groups};
    if (kind.is_summed()) return {problem.m, groups * problem.k, 1};
    return {groups * problem.m, ceil_div(problem.k, groups), groups};
}

const Tiler::Rows& Tiler::count_rows(int32_t block_m) {
    Rows& rows = rows_[size_t(block_m / 8) % rows_.size()];
    if (rows.block_m != block_m) {
        rows.block_m = block_m;
        const OpKind& kind = op_kind(problem_.op);
        if (kind.has_room()) {
            draw_rows(rows);
        } else {
            rows.tiles = count_m_tiles(problem_, block_m);
            rows.tiles_of_group = has_own_rows(kind) ? rows.tiles / problem_.num_groups : 0;
        }
    }
    return rows;
}

void Tiler::draw_rows(Rows& rows) const {
    const auto [tiles, mean] = draw_tiles(problem_, rows.block_m);
    rows.num_draws = 0;
    for (int i = 0; i < kRowDraws; ++i) {
        if (i == 0 || tiles[i] != tiles[i - 1]) rows.draws[rows.num_draws++] = {tiles[i], 0.0};
        rows.draws[rows.num_draws - 1].share += 1.0 / kRowDraws;
    }
    rows.tiles = int64_t(round_up(mean));
}

// On average over the draws.
Rounds Tiler::mean_rounds(const Rows& rows, double columns, double slots) {
    Rounds mean{0.0, 0.0};
    for (int i = 0; i < rows.num_draws; ++i) {
        const Rounds drawn = count_rounds(rows.draws[i].tiles * columns, slots);
        mean.count += rows.draws[i].share * drawn.count;
        mean.unfilled += rows.draws[i].share * drawn.unfilled;
    }
    return mean;
}

Tiling Tiler::divide(const Config& config, const TileFacts& facts) { return divide_inline(config, facts); }

Tiling Tiler::divide_inline(const Config& config, const TileFacts& facts) {
    const OpKind& kind = op_kind(problem_.op);
    const Rows& rows = count_rows(config.block_m);
    Tiling tiling;
    tiling.m_tiles = rows.tiles;
    tiling.n_tiles = ceil_div(problem_.n, config.block_n);
    tiling.m_cluster_tiles = has_own_rows(kind)
                                 ? problem_.num_groups * ceil_shift(rows.tiles_of_group, config.cluster_m)
                                 : ceil_shift(rows.tiles, config.cluster_m);
    tiling.cluster_tiles = saturating_product(tiling.m_cluster_tiles, ceil_shift(tiling.n_tiles, config.cluster_n));
    const int32_t cluster_size = config.cluster_m * config.cluster_n * config.split_k;
    // As if all CTAs that fit shared an SM, also of dense products, whose grids may have fewer (core/grid.hpp): with
    // the grid's own number the heuristic loses the same (H200, 196 problems). With a limit of SMs all persistent
    // grids have one CTA an SM; the estimate of groups does not know that.
    const bool is_limited = problem_.num_sms != 0 && !kind.is_grouped() && config.split_k == 1;
    const int32_t blocks = is_limited ? 1 : facts.blocks_per_sm;
    tiling.slots = std::max<int64_t>(1, count_slots(sms_, cluster_size, blocks));
    if (kind.is_summed())
        tiling.parts = problem_.batch_invariant ? count_invariant_parts(problem_)
                                                : std::max<int64_t>(1, tiling.slots / tiling.cluster_tiles);
    const int64_t pieces = tiling.cluster_tiles * tiling.parts;
    if (kind.has_room()) {
        const Rounds rounds = mean_rounds(rows, double(ceil_shift(tiling.n_tiles, config.cluster_n)),
                                          double(tiling.slots) * config.cluster_m);
        tiling.rounds = rounds.count;
        if (facts.blocks_per_sm == 1) tiling.unfilled = rounds.unfilled;
    } else {
        tiling.rounds = double(ceil_div(pieces, tiling.slots));
    }
    tiling.blocks_per_sm = blocks == 1 ? 1 : int(std::min<int64_t>(blocks, ceil_div(pieces * cluster_size, sms_)));
    return tiling;
}

double memory_bytes(const Problem& problem) {
    if (is_logits(problem)) return logits_memory_bytes(problem);
    const Extent extent = extent_of(problem);
    const double m = double(extent.rows), n = double(problem.n), k = double(extent.k);
    const bool has_c = problem.c_mode == CMode::kAccumulate || problem.c_mode == CMode::kGeneral;
    const double d = m * n * d_element_bytes(problem);
    return k * (m + n * double(extent.matrices)) * element_bytes(problem.op) + (has_c ? 2.0 * d : d) +
           scale_bytes(problem);
}

Estimator::Estimator(const Problem& problem, const Device& device)
    : Estimator(problem, device, base_rates(device.sku)) {}

Estimator::Estimator(const Problem& problem, const Device& device, const HeuristicRates& base)
    : problem_(problem),
      extent_(extent_of(problem)),
      rates_(scale_rates(base, device)),
      sms_(usable_sms(problem, device)),
      clock_ghz_(device.clock_mhz * 1e-3),
      tensor_ratio_(device.tensor_ratio),
      k_steps_(count_steps(extent_.k, problem.op)),
      group_rows_(rows_per_group(problem)),
      pays_vector_loop_(pays_vector_loop(problem, k_steps_)),
      waits_for_c_(op_kind(problem.op).k_is_divided() && problem.c_mode == CMode::kAccumulate),
      is_masked_(op_kind(problem.op).has_room()) {
    memory_us_ = memory_bytes(problem) / (rates_.hbm_gbps * 1e3);
    memory_fourth_ = fourth_power(memory_us_);
    l2_us_per_byte_ = 1.0 / (rates_.l2_gbps * 1e3);
    power_us_per_flop_ = 1.0 / ((is_fp8(problem.op) ? rates_.dense_tflops : rates_.bf16_tflops) * 1e6);
    sm_ns_per_byte_ = 1.0 / rates_.sm_gbps;
}

// One K step of a tile on the tensor cores, promotion and scales included.
double Estimator::mma_ns(const Config& config, const TileFacts& facts) const {
    // Warpgroups that stand side by side multiply as those of a tile of twice the rows and half the columns.
    const int rows = rows_per_warpgroup(config) * math_warpgroups(config), columns = columns_per_warpgroup(config);
    if (!is_fp8(problem_.op)) return rates_.bf16_base_ns + rates_.bf16_slope_ns * columns * (rows / 64);
    double mma = rows == 64    ? rates_.step_base_64_ns + rates_.step_slope_64_ns * columns
                 : rows == 128 ? rates_.step_base_128_ns + rates_.step_slope_128_ns * columns
                               : rates_.step_base_256_ns + rates_.step_slope_256_ns * columns;
    if (facts.has_column_scales) {
        mma += rates_.column_scale_ns * columns * (rows / 64);
        if (pays_vector_loop_ && takes_vector_loop(config)) mma *= 1.0 - rates_.vector_loop_fraction;
    } else if (facts.has_two_scales) {
        mma *= 1.0 + rates_.two_scale_fraction;
    }
    // The other knobs of the main loop are chosen after the tile, which is rated without them.
    return facts.is_pipelined ? mma : mma * (1.0 + rates_.unpipelined_fraction);
}

// BF16 tiles of masked groups take 28 to 36 % longer than the rest of the estimate says with a ring of two stages, and
// 6 to 11 % with three, for short and for long K; in FP8 three stages cost 6 to 10 % on an H100, nothing on an H200
// (H200, 298 problems in BF16; H100, 51 in BF16 and 71 in FP8). With these factors the heuristic loses 2.0 % in BF16,
// without them 2.2, and 3.4 for 3.9 on the 76 of these problems that were drawn last (H200); on the H100 2.3 in BF16
// and 1.9 in FP8, without them 2.6 and 2.2.
double Estimator::ring_factor(const Config& config) const {
    if (!is_masked_ || config.num_stages > 3) return 1.0;
    return config.num_stages == 3 ? 1.08 : 1.35;
}

// One K step of a tile: the tensor cores, or the loads, whichever is slower. Rows of A beyond m are filled with zeros,
// not loaded. A ring of S stages hides the latency of a load behind S steps; CTAs on one SM hide each other's.
void Estimator::write_step(const Config& config, const TileFacts& facts, const Tiling& tiling,
                           EstimateTerms& terms) const {
    const double rows = double(std::min<int64_t>(group_rows_, config.block_m));
    const double load = (rows + config.block_n) * kStageKBytes * sm_ns_per_byte_;
    const double peer = config.cluster_m * config.cluster_n > 1 ? rates_.cluster_step_ns : 0.0;
    terms.math_ns = mma_ns(config, facts) * tiling.blocks_per_sm;
    terms.load_ns = load * tiling.blocks_per_sm;
    terms.latency_ns = rates_.load_latency_ns / config.num_stages;
    terms.step_ns = (std::max({terms.math_ns, terms.load_ns, terms.latency_ns}) + peer) * ring_factor(config);
}

double Estimator::epilogue_ns(const Config& config, const TileFacts& facts) const {
    double row_ns = rates_.epilogue_row_ns;
    if (problem_.d_dtype == DDtype::kFp32) row_ns *= 1.0 + rates_.fp32_row_fraction;
    if (facts.d_tiles == 0) row_ns += rates_.direct_row_ns;
    if (problem_.c_mode == CMode::kGeneral) row_ns += rates_.direct_row_ns;
    return rates_.epilogue_base_ns + row_ns * column_side(config) * (row_side(config) / 64);
}

// What a finished tile waits for its C, which is asked for when the tile's K begins, or one tile earlier where there
// are two D tiles. With this the heuristic loses 2.1 and 1.8 % on groups of K in FP8 and BF16, without it 2.5 and 2.3
// (H200, 96 and 84 problems; with 1 or 2 latencies it loses more). Dense products onto C wait alike, but their trees
// were fitted without this term.
double Estimator::c_wait_ns(const Config& config, const TileFacts& facts, const EstimateTerms& terms) const {
    constexpr double kLatencies = 1.5;
    if (!waits_for_c_ || facts.d_tiles != 1) return 0.0;
    const double bytes = double(config.block_m) * config.block_n * d_element_bytes(problem_);
    const double c_ns = kLatencies * rates_.load_latency_ns + bytes * sm_ns_per_byte_;
    return std::max(0.0, c_ns - terms.steps * terms.step_ns);
}

// Swapped tiles of a few rows lose 4 to 13 % with all the stages that fit beside half of them, in one wave and in more,
// by the same 0.6 to 0.9 us for short and for long K (H200: 24 and 11 stages in 89 problems, 21 and 10 in 16).
double Estimator::deep_ring_us(const Config& config) const {
    constexpr int kRows = 24, kStages = 12;
    const bool is_narrow = config.swap_ab != 0 && config.block_m <= kRows;
    return is_narrow ? rates_.deep_ring_us * std::max(0, config.num_stages - kStages) : 0.0;
}

double Estimator::l2_read_bytes(const Config& config, const Tiling& tiling) const {
    if (is_logits(problem_)) return logits_read_bytes(problem_, tiling.m_tiles);
    const double k_bytes = double(extent_.k) * element_bytes(problem_.op);
    const double a_reads = double(ceil_shift(tiling.n_tiles, config.cluster_n));
    const double b_reads = double(tiling.m_cluster_tiles);
    return k_bytes * (double(extent_.rows) * a_reads + double(problem_.n) * b_reads);
}

// What a config's own CTAs take.
void Estimator::write_own(const Config& config, const TileFacts& facts, const Tiling& tiling,
                          EstimateTerms& terms) const {
    terms.launch_us = rates_.launch_us + deep_ring_us(config);
    if (is_logits(problem_)) {
        terms.split_us = terms.steps = terms.epilogue_ns = 0.0;
        terms.math_ns = terms.load_ns = terms.latency_ns = terms.step_ns = 0.0;
        terms.sm_us =
            logits_sm_us(problem_, config, facts.logits_columns, tiling.m_tiles, {sms_, clock_ghz_, tensor_ratio_});
        return;
    }
    const int64_t steps = ceil_shift(k_steps_, config.split_k);
    terms.steps = double(tiling.parts == 1 ? steps : ceil_div(steps, tiling.parts));
    terms.split_us = config.split_k > 1 ? rates_.split_us : 0.0;
    write_step(config, facts, tiling, terms);
    terms.epilogue_ns = epilogue_ns(config, facts) + c_wait_ns(config, facts, terms);
    terms.sm_us = tiling.rounds * tile_ns(terms) * 1e-3;
}

// Where an SM has room for one CTA, those SMs that have no tile of the last round load nothing, and the others do not
// make up for it. With this the heuristic loses 1.7 % on masked groups in FP8 and 2.2 in BF16, without it 3.0 and 2.7;
// on problems drawn since 2.5 for 3.7 and 3.9 for 4.0 (H200; H100: 2.2 for 3.3 and 2.6 for 3.0). Counted for two CTAs
// an SM, too, it loses more.
double Estimator::memory_us(double unfilled) const {
    constexpr double kLost = 0.35;
    return memory_us_ * (1.0 + kLost * unfilled);
}

// What all CTAs share.
void Estimator::write_shared(const Config& config, const Tiling& tiling, EstimateTerms& terms) const {
    terms.memory_us = memory_us(tiling.unfilled);
    terms.l2_us = l2_read_bytes(config, tiling) * l2_us_per_byte_;
    const double padded_flops =
        2.0 * double(tiling.m_tiles * config.block_m) * double(tiling.n_tiles * config.block_n) * double(extent_.k);
    terms.power_us = is_logits(problem_) ? 0.0 : padded_flops * power_us_per_flop_;
}

EstimateTerms Estimator::terms(const Config& config, const TileFacts& facts, const Tiling& tiling) const {
    EstimateTerms terms;  // not cleared: that would take as long as a part of it
    write_own(config, facts, tiling, terms);
    write_shared(config, tiling, terms);
    return terms;
}

double total_us(const EstimateTerms& terms) {
    return terms.launch_us + terms.split_us + soft_maximum(add_fourth_powers(terms));
}

double Estimator::time_us(const Config& config) const {
    const TileFacts facts = find_facts(problem_, config);
    return time_below(INFINITY, config, facts, Tiler(problem_, sms_).divide(config, facts));
}

// Most candidates are far from the limit, which the fourth powers of a part show without the others and the roots. The
// slack is far more than all roundings.
double Estimator::time_below(double limit, const Config& config, const TileFacts& facts, const Tiling& tiling) const {
    constexpr double kSlack = 1.0 + 1e-9;
    EstimateTerms terms;
    write_own(config, facts, tiling, terms);
    const double fixed_us = terms.launch_us + terms.split_us, rest = limit - fixed_us;
    const double most = rest > 0 ? rest * rest * (rest * rest) * kSlack : INFINITY;
    if (memory_fourth_ + fourth_power(terms.sm_us) > most) return INFINITY;
    write_shared(config, tiling, terms);
    const double sum = add_fourth_powers(terms);
    if (sum > most) return INFINITY;
    const double time_us = fixed_us + soft_maximum(sum);
    return time_us < limit ? time_us : INFINITY;
}

std::vector<AnalyticChoice> rank_candidates(const Problem& problem, const Estimator& estimator, const Device& device,
                                            size_t count) {
    struct Place {
        double time_us;
        const SpaceTile* tile;
    };
    const Space space(problem, device);
    Tiler tiler(problem, estimator.sms());
    std::vector<Place> best(count, Place{INFINITY, nullptr});
    for_each_candidate(problem, device, space, [&](const SpaceTile& tile) {
        const Tiling tiling = tiler.divide_inline(tile.config, tile.facts);
        const double time_us = estimator.time_below(best.back().time_us, tile.config, tile.facts, tiling);
        if (std::isinf(time_us)) return;
        auto place = best.end() - 1;
        for (; place != best.begin() && time_us < place[-1].time_us; --place) *place = place[-1];
        *place = {time_us, &tile};
    });
    std::vector<AnalyticChoice> ranked;
    ranked.reserve(count);
    for (const Place& place : best)
        if (place.tile != nullptr) ranked.push_back({place.tile->config, place.tile->facts, place.time_us});
    if (ranked.empty()) refuse_device(device);
    return ranked;
}

}  // namespace deep_gemm
