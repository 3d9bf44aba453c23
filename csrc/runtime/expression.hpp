// The expressions of einsum: which op kind computes one, and which of the caller's dims are the op's.
#pragma once

#include <Python.h>

#include "core/problem.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

// An operand [groups, rows, columns] of the op has the caller's dims of these numbers.
struct Expression {
    const char* text;  // without spaces
    const char* op;
    DimOrder a, b, d;  // of scales as of their operand, of C as of D
};

// The expression `text` among those of FP8 or of BF16 operands. Throws Error(kArgument).
const Expression& parse_expression(PyObject* text, bool is_fp8);

// See the operands that were read as the op does, and make the call one of its op kind. Operands of another rank stay
// as they are, for the checks to name.
void arrange(const Expression& expression, Call& call);

}  // namespace deep_gemm
