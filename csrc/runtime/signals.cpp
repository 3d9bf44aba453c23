#include "runtime/signals.hpp"

#include <limits>
#include <string>

#include "runtime/operand_checks.hpp"
#include "runtime/operand_text.hpp"

namespace deep_gemm {
namespace {

int64_t count_elements(const TensorView& view) {
    int64_t count = 1;
    for (int i = 0; i < view.rank; ++i) count *= view.shape[size_t(i)];
    return count;
}

}  // namespace

void check_signal(const Call& call, const Sizes& sizes) {
    const Operand& signal = call.signal;
    check_device(signal, call.a);
    check_dtype(signal, Dtype::kInt32, "allocate it by torch.zeros(..., dtype=torch.int32).");
    if (signal_threshold(sizes.n) > std::numeric_limits<int32_t>::max())
        fail_shape("n = " + std::to_string(sizes.n) + ": 8 * ceil(n / 8), up to which signals count, must be below " +
                   "2^31; split the product along n.");
    const int64_t wanted = sizes.num_groups * ceil_div(sizes.m, kSignalRows);
    if (signal.view.rank <= kMaxRank && count_elements(signal.view) >= wanted) return;
    fail_shape("signal.shape = " + shape_text(signal) + ": must have at most " + std::to_string(kMaxRank) +
               " dims and at least num_groups * ceil(max_m / " + std::to_string(kSignalRows) +
               ") = " + std::to_string(wanted) + " elements; pass torch.zeros(" + std::to_string(wanted) +
               ", dtype=torch.int32) on that device.");
}

void check_signal_layout(const Call& call) {
    check_contiguous(call.signal);
    check_alignment(call.signal, sizeof(int32_t));
    for (Operand Call::* member : kOperands)
        if (const Operand& operand = call.*member; operand.is_present() && count_elements(operand.view) > 0)
            check_no_overlap(call.signal, operand);
}

}  // namespace deep_gemm
