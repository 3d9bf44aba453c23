#include "runtime/overlap.hpp"

#include <utility>

namespace deep_gemm {
namespace {

// Rows with the larger stride first, as they lie in memory; the dims of a transposed view are exchanged.
TensorView in_memory_order(TensorView view) {
    if (view.rank != 2 || view.strides[0] >= view.strides[1] || view.shape[0] == 1) return view;
    std::swap(view.shape[0], view.shape[1]);
    std::swap(view.strides[0], view.strides[1]);
    return view;
}

// Bytes from the first element's start to the last element's end.
uint64_t extent_bytes(const TensorView& view, int first_dim) {
    uint64_t last = 0;
    for (int i = first_dim; i < view.rank; ++i) last += uint64_t(view.shape[i] - 1) * uint64_t(view.strides[i]);
    return (last + 1) * uint64_t(element_bytes(view.dtype));
}

uint64_t row_stride_bytes(const TensorView& view) {
    return uint64_t(view.strides[0]) * uint64_t(element_bytes(view.dtype));
}

// Both are matrices with rows at the same pitch, and the later one's columns lie in the gap between the earlier one's
// rows.
bool are_side_by_side(const TensorView& low, const TensorView& high) {
    if (low.rank != 2 || high.rank != 2) return false;
    const uint64_t pitch = row_stride_bytes(low);
    if (pitch == 0 || pitch != row_stride_bytes(high)) return false;
    const uint64_t offset = (high.address - low.address) % pitch;
    return offset >= extent_bytes(low, 1) && offset + extent_bytes(high, 1) <= pitch;
}

}  // namespace

bool may_overlap(const TensorView& x, const TensorView& y) {
    const bool is_x_low = x.address <= y.address;
    const TensorView& low = is_x_low ? x : y;
    const TensorView& high = is_x_low ? y : x;
    if (high.address - low.address >= extent_bytes(low, 0)) return false;
    return !are_side_by_side(in_memory_order(low), in_memory_order(high));
}

}  // namespace deep_gemm
