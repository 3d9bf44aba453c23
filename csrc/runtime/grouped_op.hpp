// A checked grouped product on its way to a kernel: what the public ops and the launch of one explicit kernel share.
#pragma once

#include <cstdint>

#include "runtime/grouped_call.hpp"
#include "runtime/kernel.hpp"

namespace deep_gemm {

// A hint of so many rows as problems have it: within 1..m, and of three significant bits, so that a hint that changes
// from call to call does not fill the dispatch table.
int64_t round_expected_m(int64_t expected_m, int64_t m);

// Check the call and compute on its device, as run_gemm; what the caller left out is filled in. Throws Error.
void run_grouped(GroupedCall& call);

// Check the call against `kernel` and launch it, as launch_explicit. Throws Error.
void launch_grouped_explicit(const LoadedKernel& kernel, GroupedCall& call, int num_sms);

}  // namespace deep_gemm
