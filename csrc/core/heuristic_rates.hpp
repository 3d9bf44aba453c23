// The heuristic's constants, in one table so that they can be fitted to measurements and hashed. Fitted to 122 problems
// over the whole default space, measured on an H200 running free (its power limit included; on left-out thirds of the shapes the mean
// regret was 1.1 %); other SM90 GPUs are scaled from them by SM count, clock and bandwidth.
#pragma once

namespace deep_gemm {

struct HeuristicRates {
    double launch_us = 3.022;       // launch, barrier set-up, first descriptor and first byte, last store drained
    double hbm_gbps = 3700;         // memory, cold L2
    double l2_gbps = 21740;         // all SMs together, out of L2
    double sm_gbps = 327.1;         // what one SM's loads reach
    double load_latency_ns = 1185;  // from issuing a TMA load to its full barrier, out of memory
    double dense_tflops = 1350;     // all SMs together, held down by the power limit
    double step_base_64_ns = 86.3;  // one 128-K step of a tile: base + slope * block_n, by block_m
    double step_base_128_ns = 200.5;
    double step_base_256_ns = 177.5;
    double step_slope_64_ns = 0.8362;
    double step_slope_128_ns = 0.6939;
    double step_slope_256_ns = 2.611;
    double two_scale_fraction = 0.3055;    // extra cost of a step where the tile can touch two B scales
    double unpipelined_fraction = 0.1762;  // extra cost of a step without two partial accumulators
    double cluster_step_ns = 29.84;        // waiting for the peer, once a step
    double epilogue_base_ns = 327.4;       // per tile: last promotion, barrier, store; not overlapped with MMAs
    double epilogue_row_ns = 3.491;        // per tile and column of 64 rows
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
};

// Raise it when a formula of heuristic.cpp or what it asks of legality.cpp changes; the constants are hashed by themselves.
inline constexpr int kHeuristicRevision = 2;

}  // namespace deep_gemm
