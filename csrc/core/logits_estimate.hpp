// What the heuristic knows of attention logits: bytes, and what an SM needs for the tiles that it takes.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// Raise it when a formula or constant of logits_estimate.cpp changes: the estimate_revision of attention logits.
inline constexpr int kLogitsEstimateRevision = 2;

// Bytes read from L2 by `token_tiles` tiles of tokens, each of which reads all keys that its tokens see.
double logits_read_bytes(const Problem& problem, int64_t token_tiles);

// Bytes of queries, weights, keys, their scales and logits, each moved once. Every sequence of a paged problem has keys
// of its own.
double logits_memory_bytes(const Problem& problem);

struct LogitsMachine {
    int32_t sms;
    double clock_ghz, tensor_ratio;  // the share of an H200's tensor throughput at that clock
};

// Time of the busiest SM. The host does not know which positions a token sees: it counts all of them. `wgmma_columns`
// are logits_columns of the config.
double logits_sm_us(const Problem& problem, const Config& config, int wgmma_columns, int64_t token_tiles,
                    const LogitsMachine& machine);

}  // namespace deep_gemm
