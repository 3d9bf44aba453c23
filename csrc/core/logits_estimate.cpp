#include "core/logits_estimate.hpp"

#include <algorithm>

#include "core/logits.hpp"

namespace deep_gemm {
namespace {

// Cycles of an SM. WGMMA m64n256k32 takes 128 of them; the four quarters of an SM issue 128 FP32 instructions a cycle.
constexpr double kMmaPerColumnAndK = 1.0 / 64, kAluPerColumn = 1.0;  // two instructions an element, 64 rows
constexpr double kAluPerToken = 16.0;  // sum over lanes, scale, bounds and store of 64 keys
// Measured on an H200: warpgroups overlap a tenth of multiplying and reducing, a tile costs 60 cycles besides, and each
// further chain of WGMMAs of a tile 3 %.
constexpr double kUnhidden = 0.9, kPerTile = 60.0, kPerChain = 0.03;
constexpr double kLatency = 350.0;  // barrier, first result of a WGMMA, store: hidden by the other warpgroups
// From issuing a load to its barrier. Six stages hide that of memory, too (H200).
constexpr double kLoadLatency = 800.0;
constexpr double kLoadBytes = 120.0;     // per cycle
constexpr int kMinColumns = 8;           // of a chain
constexpr double kTileLatency = 1000.0;  // queries and bounds of the next tile of tokens

double keys_bytes(const Problem& problem) { return double(problem.n) * double(problem.k + 4); }

}  // namespace

double logits_read_bytes(const Problem& problem, int64_t token_tiles) {
    return double(problem.m) * problem.heads * double(problem.k + 4) + double(token_tiles) * keys_bytes(problem);
}

double logits_memory_bytes(const Problem& problem) {
    const double sequences = op_kind(problem.op).is_paged() ? double(problem.m / problem.next_n) : 1.0;
    const double logits = double(problem.m) * double(problem.n) * (problem.d_dtype == DDtype::kFp32 ? 4 : 2);
    return double(problem.m) * problem.heads * double(problem.k + 4) + sequences * keys_bytes(problem) + logits;
}

double logits_sm_us(const Problem& problem, const Config& config, int wgmma_columns, int64_t token_tiles,
                    const LogitsMachine& machine) {
    const double columns = double(config.block_m) * problem.heads, groups = key_groups(config);
    const double mma = columns * double(problem.k) * kMmaPerColumnAndK / machine.tensor_ratio;
    const double alu = columns * kAluPerColumn + config.block_m * kAluPerToken;
    const double load = std::max(kKeysPerStage * double(problem.k + 4) / kLoadBytes, kLoadLatency / config.num_stages);
    // A config that these heads cannot have counts as one with the narrowest chain: features hold its estimate, too.
    const double chains = columns / std::max(wgmma_columns, kMinColumns);
    const double compute = (kUnhidden * (mma + alu) + kPerTile) * (1.0 + kPerChain * (chains - 1.0));
    const double step = std::max({compute, load, (mma + alu + kLatency) / groups});
    const double key_tiles = double((problem.n + kKeysPerStage - 1) / kKeysPerStage);
    const double steps = double(token_tiles) * key_tiles / machine.sms;
    const double cycles = std::max(steps, 1.0) * step + std::max(double(token_tiles) / machine.sms, 1.0) * kTileLatency;
    return cycles / (machine.clock_ghz * 1e3);
}

}  // namespace deep_gemm
