#include "core/loop_rule.hpp"

#include "core/heuristic.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

// K steps of a tile from which a knob pays. Figures are of one comparison on an H200 (cold L2, each tile with and
// without each knob in the same rounds, 4 to 128 steps; docs/kernels.md), or of "sweeps": shares of the time without
// the knob in the sweeps recorded on an H200 and an H100, geometric means of as many problems as stand beside them.
constexpr int64_t kMinSteps = 12;             // at 4 steps all of them lose, up to 36 %
constexpr int64_t kScaleWarpStepsOfOne = 32;  // 64 rows: up to 18 % won at 56 steps; at 16 not all gain
constexpr int64_t kEarlyScaleWarpSteps = 16;  // for most of them, see pays_scale_warp
constexpr int kMaxScaleWarpColumns = 144;     // of 64 rows: 64x160 and 64x192 lose 1.5 % (sweeps, 525)
constexpr int64_t kMinVectorSteps = 8;        // columns have scales of their own, D is FP32: 8 to 13 % won at 8 and 10
constexpr int64_t kMinHalfVectorSteps = 32;   // and where D is BF16
constexpr int64_t kMinWideBesideSteps = 8;    // 64x256, see pays_loop_beside
constexpr int64_t kMinBesideSteps = 16;       // and 64x224
constexpr int64_t kMinNarrowLoopSteps = 60;   // 128x80 where K ends within a round
constexpr int64_t kMinHalfAddSteps = 20;      // BF16
constexpr int64_t kMinWideAddSteps = 16;      // FP8 tiles wider than the next; with fewer they lose 6 to 28 %
constexpr int kReduceAddColumns = 128;        // 2 to 5 % won

bool has_two_warpgroups(const Config& config) { return math_warpgroups(config) == 2 && config.swap_ab == 0; }

bool is_dense(const Problem& problem) { return !op_kind(problem.op).is_grouped(); }
bool is_masked(const Problem& problem) { return op_kind(problem.op).has_room(); }
bool is_contiguous(const Problem& problem) { return op_kind(problem.op).grouping == Grouping::kMContiguous; }

// What the sweeps have of products with block scales of B: a BF16 D.
bool is_swept(const Problem& problem) { return problem.recipe == Recipe::k1d2d && problem.d_dtype == DDtype::kBf16; }

// Tiles of 256 rows that gain by all knobs, in whole rounds or not: 256x128, and 256x112 with 0.87 to 0.99 of the time
// (H100, 29 dense products of 9 to 141 steps).
bool is_tall(const Config& config) { return config.block_m == 256 && (config.block_n == 128 || config.block_n == 112); }

// Tiles of 128 rows and single CTAs that were timed with each knob alone, on an H100: without C, from 16 steps on.
bool is_timed_alone(const Problem& problem, const Config& config, int64_t steps) {
    return is_swept(problem) && problem.c_mode == CMode::kNone && !has_scale_ring(problem) && is_single(config) &&
           config.block_m == 128 && steps >= kEarlyScaleWarpSteps;
}

// Whether a tile gains by the loop where its K ends within a round of the ring. Most lose up to 20 % then. 256x128
// gains all the same, and in sweeps, with the scale warp and from 12 steps on, so do 128x192 with four stages, 0.89
// (81; masked 0.98, 8; contiguous 1.00, 16), and 128x160 with five, dense 0.86 to 0.96 (169, all of an H100), masked
// 0.93 (35), contiguous 0.97 (14). Dense 128x144 gains 0.7 % more by both than by the warp alone (12, H100), up to 1.5
// % in one wave; large products lose up to 2.5 %. Dense 128x80 gains 0.2 to 3 % (5, H100, 60 to 128 steps). All are
// single CTAs; clusters were timed with whole rounds alone, and gain as much there.
bool gains_within_rounds(const Problem& problem, const Config& config, int64_t steps) {
    if (config.block_m == 256) return is_tall(config);
    if (!is_swept(problem)) return false;
    const int columns = config.block_n, stages = config.num_stages;
    if (columns == 192) return stages == 4 && (is_dense(problem) || is_masked(problem));
    if (columns == 160)
        return stages == 5 &&
               (is_dense(problem) || (is_single(config) && (is_masked(problem) || is_contiguous(problem))));
    if (!is_dense(problem) || !is_timed_alone(problem, config, steps)) return false;
    return (columns == 144 && stages == 5) || (columns == 80 && stages == 7 && steps >= kMinNarrowLoopSteps);
}

// Whether a tile takes the scale warp without the loop, even in whole rounds: dense 128x128 0.90 with the warp and 1.00
// with both there (2 products), 128x112 0.95 and 0.95 (2), 128x136 0.95 and 0.96 (1); masked 128x112 0.96 and 0.98 (7),
// 128x136 0.99 and 1.00 (2), contiguous 128x136 1.01 and 1.01 (1). Within rounds the warp alone is better by 1 to 3 %.
// Masked 128x128 has both (0.92, 2). Dense 128x96 with seven stages, H100: 0.96 and 0.98 with the warp, 1.00 and 1.00
// with the loop, 0.98 and 0.99 with both (2 in whole rounds), and 0.99 with the warp, 1.01 with the loop (10 within
// rounds, 0.965 to 1.00).
bool gains_without_loop(const Problem& problem, const Config& config, int64_t steps) {
    if (!is_timed_alone(problem, config, steps)) return false;
    switch (config.block_n) {
        case 96: return is_dense(problem) && steps >= kScaleWarpStepsOfOne;
        case 112: return is_dense(problem) || is_masked(problem);
        case 128: return is_dense(problem) && config.num_stages == 5;
        case 136: return is_dense(problem) || is_masked(problem) || is_contiguous(problem);
        default: return false;
    }
}

// 256x64 gains by whole rounds where its scales come by TMA: in sweeps 0.91 (9, all of an H200).
bool fits_rounds(const Problem& problem, const Config& config, int64_t steps) {
    if (has_scale_ring(problem)) return kRingSteps % config.num_stages == 0;
    if (steps % config.num_stages != 0) return gains_within_rounds(problem, config, steps);
    return config.block_m != 256 || is_tall(config) || (config.block_n == 64 && is_dense(problem) && is_swept(problem));
}

// Tiles of 64 rows whose warpgroups stand side by side, with the scale warp, in whole rounds or not (H200, one
// comparison): 64x256 0.96 to 0.98 (105 dense products of 8 to 128 steps, 40 masked ones), with fewer steps 1.00;
// 64x224 dense 0.98 from 16 steps on (67), with fewer 1.00 to 1.04, masked 1.00 to 1.02. Timed with MN-major scales and
// a BF16 D alone.
bool pays_loop_beside(const Problem& problem, const Config& config, int64_t steps) {
    if (problem.recipe != Recipe::k1d2d) return pays_vector_loop(problem, steps);
    if (has_scale_ring(problem) && kRingSteps % config.num_stages != 0) return false;  // no round is whole
    if (config.block_n == kMaxColumns) return steps >= kMinWideBesideSteps;
    return is_dense(problem) && steps >= kMinBesideSteps;
}

// 128x64 5 %, 128x96 2 % (dense single CTAs: with fewer than 32 steps), 128x192 with the scale warp 4 to 6 %, 256x128
// with it and the barrier 1 to 5 % faster, 256x112 1 to 13 %. Tiles of one warpgroup lose up to 6 %. Where columns have
// scales of their own, 5 to 17 % faster from 32 steps on, whether tiles end with a round or not; with 8 to 16 steps an
// FP32 D gains as much, a BF16 D between 5 % won and 4 % lost.
bool pays_loop(const Problem& problem, const Config& config, int64_t steps) {
    if (is_beside(config)) return config.split_k == 1 && pays_loop_beside(problem, config, steps);
    if (!has_two_warpgroups(config) || config.split_k > 1 || gains_without_loop(problem, config, steps)) return false;
    if (problem.recipe == Recipe::k1d1d && config.block_n < kMinVectorLoopColumns && config.block_m == 128)
        return false;
    return pays_vector_loop(problem, steps) || (steps >= kMinSteps && fits_rounds(problem, config, steps));
}

// From 16 to 31 steps, in sweeps: dense 64x64 0.98 (87) and 64x96 0.95 (113; one product up to 1.08); other dense ones
// of up to 128 columns 0.87 to 1.00 at 16 and 24 steps (H100, 2 products each); masked ones of 32 to 144 columns 0.94
// to 1.00 (H100, 5 to 17 each). Contiguous ones 0.95 to 1.08, and splits of K, 1.00 to 1.03 (H100, 48): not these.
bool pays_scale_warp_of_one(const Problem& problem, const Config& config, int64_t steps) {
    const int columns = config.block_n;
    const bool is_early =
        is_swept(problem) && config.split_k == 1 && (is_masked(problem) || (is_dense(problem) && columns <= 128));
    return steps >= (is_early ? kEarlyScaleWarpSteps : kScaleWarpStepsOfOne) && columns <= kMaxScaleWarpColumns;
}

// Tiles of 128 rows that gain by the scale warp without the loop: those of gains_without_loop, and 128x144 where it
// gets no loop, 0.96 (6; groups 0.99). In sweeps 128x112 0.95 (6; masked 0.96, 37), 128x136 0.92 (6; masked and
// contiguous 0.99).
bool pays_scale_warp_alone(const Problem& problem, const Config& config, int64_t steps) {
    if (gains_without_loop(problem, config, steps)) return true;
    return config.block_n == 144 && is_timed_alone(problem, config, steps) &&
           (is_dense(problem) || is_masked(problem) || is_contiguous(problem));
}

// With 8 to 64 tokens (swapped) nothing is gained; 128x64 of dense products gains nothing beside the loop, nor does
// 256x64 of masked ones (sweeps, 1.02, 64). 128x160 and 128x192 lose without the loop, up to 33 and 7 %.
bool pays_scale_warp(const Problem& problem, const Config& config, int64_t steps) {
    if (config.swap_ab != 0) return false;
    if (math_warpgroups(config) == 1) return pays_scale_warp_of_one(problem, config, steps);
    if (is_beside(config)) return config.loop != 0;
    if (pays_scale_warp_alone(problem, config, steps)) return true;
    const bool is_narrow = config.block_n < 128 && !is_tall(config) && (!is_masked(problem) || config.block_m == 256);
    return steps >= kMinSteps && !is_narrow && (config.block_n <= 128 || config.loop != 0);
}

bool pays_tile_barrier(const Problem& problem, const Config& config, int64_t steps) {
    return problem.recipe == Recipe::k1d2d && is_tall(config) && steps >= kMinSteps;
}

// BF16, on an H100: from 32 steps on, plain tiles of all widths take 0.86 to 0.99 of the time (12 dense products; of
// groups of K, the best tiles of 18, 0.92 to 1.01), with 20 and 24 steps 0.96 to 1.00 (9 of groups of K; one 1.08),
// with 16 0.93 to 1.14, with 8 1.04 to 1.38. Swapped tiles and batched products were not timed.
bool pays_half_reduce_add(const Problem& problem, const Config& config, int64_t steps) {
    return steps >= kMinHalfAddSteps && config.swap_ab == 0 && !op_kind(problem.op).is_batched();
}

// Wide FP8 tiles, with the loop, on an H100: 128x136 0.96 (30 of groups of K) and 0.98 (5 dense), 128x152 0.95 (30) and
// 1.00 (4); 128x144 loses 5 and 2 %.
bool pays_reduce_add(const Problem& problem, const Config& config, int64_t steps) {
    if (!is_fp8(problem.op)) return pays_half_reduce_add(problem, config, steps);
    if (problem.recipe != Recipe::k1d1d || !has_two_warpgroups(config)) return false;
    if (config.block_n <= kReduceAddColumns) return steps >= kMinVectorSteps;
    return (config.block_n == 136 || config.block_n == 152) && steps >= kMinWideAddSteps;
}

template <typename IsLegal>
Config add_knobs(const Problem& problem, const Config& config, int64_t k_steps, IsLegal&& is_legal_config) {
    if (is_logits(problem)) return config;
    const int64_t steps = ceil_div(k_steps, config.split_k);
    Config best = config;
    const auto add = [&](int32_t Config::* knob, bool pays) {
        if (!pays) return;
        Config with = best;
        with.*knob = 1;
        // No knob takes the room of C one tile ahead. reduce_add, which loads no C, is 1 to 6 % faster from 16 steps
        // on, but a deeper ring of the same tile, which has no such room, gets it.
        if (is_legal_config(with) && has_two_d_tiles(problem, with) == has_two_d_tiles(problem, best)) best = with;
    };
    if (is_fp8(problem.op)) {
        add(&Config::loop, pays_loop(problem, config, steps));
        add(&Config::scale_warp, pays_scale_warp(problem, best, steps));
        add(&Config::tile_barrier, pays_tile_barrier(problem, config, steps));
    }
    add(&Config::reduce_add, pays_reduce_add(problem, config, steps));
    return best;
}

}  // namespace

bool pays_vector_loop(const Problem& problem, int64_t steps) {
    const int64_t least = problem.d_dtype == DDtype::kFp32 ? kMinVectorSteps : kMinHalfVectorSteps;
    return problem.recipe == Recipe::k1d1d && steps >= least;
}

Config with_loop_knobs(const Problem& problem, const Config& config, const Device& device) {
    const int64_t k_steps = count_steps(extent_of(problem).k, problem.op);
    return add_knobs(problem, config, k_steps, [&](const Config& with) { return is_legal(problem, with, device); });
}

Config with_loop_knobs_of_tile(const Problem& problem, const Config& tile, const Device& device, int64_t k_steps) {
    return add_knobs(problem, tile, k_steps,
                     [&](const Config& with) { return is_legal_with_knobs(problem, with, device); });
}

}  // namespace deep_gemm
