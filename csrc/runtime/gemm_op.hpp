// A checked product on its way to a kernel: what the public ops and the launch of one explicit kernel share.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "runtime/kernel.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

// Memory order of A and B: which of them the caller passed transposed, against nt.
struct MemoryLayout {
    const char* suffix;
    bool is_a_transposed, is_b_transposed;
};

inline constexpr MemoryLayout kMemoryLayouts[] = {
    {"nt", false, false}, {"nn", false, true}, {"tn", true, true}, {"tt", true, false}};

// A tensor as an operand of the op, which works on its transpose where `is_transposed`. Throws as make_operand.
Operand make_oriented_operand(const char* name, PyObject* object, bool is_transposed);

// C as the caller passed it; absent where `object` is null or None. D itself is not looked at twice. Throws as
// make_operand.
Operand make_c(PyObject* object, const Operand& d);

// A pair (data, scales) as a tuple; a list is copied, so that nobody can empty it while the call looks at it. Throws
// Error(kArgument).
pybind11::tuple parse_pair(const char* name, PyObject* object);

// The recipe that the caller named or, without one, that the ranks of the scales show: 1-D on both sides is one scale
// per row.
Recipe choose_recipe(std::optional<Recipe> given, const Operand& scale_a, const Operand& scale_b);

// Check the operands and compute on their device: on a GPU by dispatch, on the CPU by the reference, for meta tensors
// not at all. Throws Error.
void run_gemm(GemmOperands operands, const GemmOptions& options);

// Check the operands against `kernel` and launch it on them, past selection and dispatch, on `num_sms` SMs (0 = all).
// Throws Error.
void launch_explicit(const LoadedKernel& kernel, const GemmOperands& operands, const GemmOptions& options, int num_sms);

}  // namespace deep_gemm
