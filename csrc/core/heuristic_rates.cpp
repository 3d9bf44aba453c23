#include "core/heuristic_rates.hpp"

#include "core/logits_estimate.hpp"

namespace deep_gemm {
namespace {

// The GPU that the rates were fitted on; a device with its SKU, at any power limit, uses them as they are, whatever its
// driver reports.
constexpr const char* kReferenceSku = "nvidia-h200-sm132";
constexpr double kReferenceSms = 132, kReferenceClockMhz = 1980, kReferenceMemoryGbps = 4800;

}  // namespace

int estimate_revision(const OpKind& kind) {
    if (kind.is_logits()) return kLogitsEstimateRevision;
    if (kind.has_room()) return 4;      // the tiles of all groups are about normal, and whole
    if (kind.k_is_divided()) return 2;  // a tile may wait for its C; trees know of the second D tile
    if (!kind.is_grouped()) return 3;   // rings for three CTAs where a grid has several an SM
    return 1;
}

const HeuristicRates& base_rates(std::string_view sku) {
    static constexpr HeuristicRates kH200Rates{};
    // An H800 is an H100 with fewer links to other GPUs.
    for (std::string_view kind : {"nvidia-h100", "nvidia-h800"})
        if (sku.starts_with(kind)) return kH100Rates;
    return kH200Rates;
}

HeuristicRates scale_rates(const HeuristicRates& base, const Device& device) {
    if (base_sku(device.sku) == kReferenceSku) return base;
    HeuristicRates rates = base;
    const double clock = device.clock_mhz / kReferenceClockMhz, sms = device.sm_count / kReferenceSms;
    const double tensor = clock * device.tensor_ratio;
    rates.hbm_gbps *= device.memory_gbps / kReferenceMemoryGbps;
    rates.l2_gbps *= clock * sms;
    rates.sm_gbps *= clock;
    for (double* tflops : {&rates.dense_tflops, &rates.bf16_tflops}) *tflops *= tensor * sms;
    for (double* ns :
         {&rates.step_slope_64_ns, &rates.step_slope_128_ns, &rates.step_slope_256_ns, &rates.bf16_slope_ns})
        *ns /= tensor;
    for (double* ns : {&rates.step_base_64_ns, &rates.step_base_128_ns, &rates.step_base_256_ns, &rates.bf16_base_ns,
                       &rates.cluster_step_ns, &rates.column_scale_ns, &rates.epilogue_base_ns, &rates.epilogue_row_ns,
                       &rates.direct_row_ns})
        *ns /= clock;
    return rates;
}

}  // namespace deep_gemm
