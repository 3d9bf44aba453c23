// Signals of masked products: counters that say which rows of D are stored, so that another kernel can send these on
// while the product still runs. A group has one for every kSignalRows rows, and the caller has made them 0. The kernel
// adds to them as sm90/epilogue/signals.cuh says; where no kernel runs, deep_gemm.stream.add_signals does.
#pragma once

#include <cstdint>

#include "core/legality.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

inline constexpr int64_t kSignalRows = 64;  // the kernel's twin: sm90/epilogue/signals.cuh

// What the counter of a block with rows ends at: the area of kSignalRows rows in units of 8 rows by 8 columns.
inline int64_t signal_threshold(int64_t n) { return kSignalRows / 8 * ceil_div(n, 8); }

// The checks of a call's `signal`, which is there: device, dtype and size; then, where the call is not empty, strides,
// alignment and overlap. Throw Error: kDevice, kDtype, kShape; kLayout.
void check_signal(const Call& call, const Sizes& sizes);
void check_signal_layout(const Call& call);

}  // namespace deep_gemm
