// The one path of a call: checks -> problem -> choice -> tensor maps and parameters -> launch. The public ops and the
// launch of one explicit kernel share it.
#pragma once

#include "runtime/call.hpp"
#include "runtime/kernel.hpp"

namespace deep_gemm {

// Check `call` and compute on the device of its operands: on a GPU by dispatch, on the CPU by the reference, for meta
// tensors not at all. What the caller left out is filled in. Throws Error, PythonError.
void run(Call& call);

// Check `call` against `kernel` and launch that, past selection and dispatch, on `num_sms` SMs (0 = all). Throws as
// run.
void launch_explicit(const LoadedKernel& kernel, Call& call, int num_sms);

}  // namespace deep_gemm
