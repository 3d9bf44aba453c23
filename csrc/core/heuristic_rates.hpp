// The heuristic's constants, in one table so that they can be fitted to measurements and hashed. Those of an H200
// (700 W) were fitted to a sample of 200 problems of each op kind but attention logits, whose estimate has no rates
// (benchmarks/fit_rates.py, docs/search.md); other SM90 GPUs are scaled from them by SM count, clock and bandwidth.
#pragma once

#include <iterator>
#include <string_view>

#include "core/device.hpp"
#include "core/op_kind.hpp"

namespace deep_gemm {

struct HeuristicRates {
    double launch_us = 2.718;        // launch, barrier set-up, first descriptor and first byte, last store drained
    double hbm_gbps = 4320;          // memory, cold L2
    double l2_gbps = 34270;          // all SMs together, out of L2
    double sm_gbps = 231.1;          // what one SM's loads reach
    double load_latency_ns = 1590;   // from issuing a TMA load to its full barrier, out of memory
    double dense_tflops = 1706;      // all SMs together, held down by the power limit
    double step_base_64_ns = 80.71;  // one 128-K step of a tile: base + slope * columns, by the MMA's rows
    double step_base_128_ns = 188.4;
    double step_base_256_ns = 75.79;
    double step_slope_64_ns = 1.316;
    double step_slope_128_ns = 1.314;
    double step_slope_256_ns = 5.263;
    double two_scale_fraction = 0.1441;     // extra cost of a step where a math warpgroup can touch two B scales
    double unpipelined_fraction = 0.03376;  // extra cost of a step without two partial accumulators
    double cluster_step_ns = 48.51;         // waiting for the peer, once a step
    double epilogue_base_ns = 505.2;        // per tile: last promotion, barrier, store; not overlapped with MMAs
    double epilogue_row_ns = 2.438;         // per tile and column of 64 rows
    double fp32_row_fraction = 3.498;       // extra of epilogue_row_ns where D is FP32
    double direct_row_ns =
        22.19;  // extra of epilogue_row_ns without a D tile in shared memory, once more where C is read
    double column_scale_ns = 0.8357;       // extra cost of a step per MMA column with a scale of its own, and 64 rows
    double vector_loop_fraction = 0.1109;  // of such a step of 128 rows that the unrolled loop saves
    double split_us = 0.869;               // exchange and addition of the parts of a split
    double deep_ring_us = 0.06789;         // once, for each stage beyond twelve of a swapped tile of up to 24 rows
    double bf16_tflops = 924.4;            // dense_tflops of BF16 operands
    double bf16_base_ns = 20.55;           // one 64-K step of a BF16 tile: base + slope * columns * (rows / 64)
    double bf16_slope_ns = 1.151;
};

// Those of an H100 (700 W): fitted, from an H200's of before, to a sample of 1,360 problems of every op kind but
// attention logits, of which every candidate was measured, on twelve of them (benchmarks/fit_rates.py, docs/search.md).
// Given for the SMs, clock and memory of an H200, as those are.
inline constexpr HeuristicRates kH100Rates = {
    .launch_us = 2.597,
    .hbm_gbps = 4320,
    .l2_gbps = 28110,
    .sm_gbps = 230.9,
    .load_latency_ns = 1629,
    .dense_tflops = 1821,
    .step_base_64_ns = 105.3,
    .step_base_128_ns = 230.1,
    .step_base_256_ns = 73.45,
    .step_slope_64_ns = 1.385,
    .step_slope_128_ns = 1.121,
    .step_slope_256_ns = 4.651,
    .two_scale_fraction = 0.1291,
    .unpipelined_fraction = 0.03662,
    .cluster_step_ns = 56.98,
    .epilogue_base_ns = 661,
    .epilogue_row_ns = 3.014,
    .fp32_row_fraction = 3.949,
    .direct_row_ns = 36.99,
    .column_scale_ns = 0.8165,
    .vector_loop_fraction = 0.1212,
    .split_us = 1.046,
    .deep_ring_us = 0.07659,
    .bf16_tflops = 911.9,
    .bf16_base_ns = 21.26,
    .bf16_slope_ns = 1.04,
};

struct RateField {
    const char* name;
    double HeuristicRates::* member;
};

inline constexpr RateField kRateFields[] = {
    {"launch_us", &HeuristicRates::launch_us},
    {"hbm_gbps", &HeuristicRates::hbm_gbps},
    {"l2_gbps", &HeuristicRates::l2_gbps},
    {"sm_gbps", &HeuristicRates::sm_gbps},
    {"load_latency_ns", &HeuristicRates::load_latency_ns},
    {"dense_tflops", &HeuristicRates::dense_tflops},
    {"step_base_64_ns", &HeuristicRates::step_base_64_ns},
    {"step_base_128_ns", &HeuristicRates::step_base_128_ns},
    {"step_base_256_ns", &HeuristicRates::step_base_256_ns},
    {"step_slope_64_ns", &HeuristicRates::step_slope_64_ns},
    {"step_slope_128_ns", &HeuristicRates::step_slope_128_ns},
    {"step_slope_256_ns", &HeuristicRates::step_slope_256_ns},
    {"two_scale_fraction", &HeuristicRates::two_scale_fraction},
    {"unpipelined_fraction", &HeuristicRates::unpipelined_fraction},
    {"cluster_step_ns", &HeuristicRates::cluster_step_ns},
    {"epilogue_base_ns", &HeuristicRates::epilogue_base_ns},
    {"epilogue_row_ns", &HeuristicRates::epilogue_row_ns},
    {"fp32_row_fraction", &HeuristicRates::fp32_row_fraction},
    {"direct_row_ns", &HeuristicRates::direct_row_ns},
    {"column_scale_ns", &HeuristicRates::column_scale_ns},
    {"vector_loop_fraction", &HeuristicRates::vector_loop_fraction},
    {"split_us", &HeuristicRates::split_us},
    {"deep_ring_us", &HeuristicRates::deep_ring_us},
    {"bf16_tflops", &HeuristicRates::bf16_tflops},
    {"bf16_base_ns", &HeuristicRates::bf16_base_ns},
    {"bf16_slope_ns", &HeuristicRates::bf16_slope_ns},
};

// A rate that is not in the table would not count in heuristic_version, and be no part of a fit.
static_assert(sizeof(HeuristicRates) == std::size(kRateFields) * sizeof(double), "name every rate in kRateFields");

// Raise it when a formula of heuristic.cpp or what it asks of legality.cpp changes for all products; what changes for
// one kind of them has a revision of its own (estimate_revision); the constants are hashed by themselves. Not for
// loop_rule.cpp: no estimate hangs on it, and trees judge whatever configs the shortlist has. Nor for a new tile that
// is_late_tile (candidates.hpp) names; it names none once this was raised.
inline constexpr int kHeuristicRevision = 11;

// The rates of an H200, or those fitted to a GPU of this SKU's kind. All are given for the SMs, clock and memory of an
// H200.
const HeuristicRates& base_rates(std::string_view sku);

// The rates of `device`, scaled from such rates.
HeuristicRates scale_rates(const HeuristicRates& base, const Device& device);

// The revision of what only op kinds like this one are rated by. An artefact carries it for each of its op kinds, so
// that the parts of others stay valid; a part without one is of the first.
int estimate_revision(const OpKind& kind);

}  // namespace deep_gemm
