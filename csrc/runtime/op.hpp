// The public ops: builtins made from the rows of deep_gemm/ops.py, called without a tuple or a dict of arguments
// (METH_FASTCALL | METH_KEYWORDS).
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/python.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

// One parameter of an op. Its name says what it is (op.cpp lists the known ones); `alias` is another name of it as a
// keyword, or empty.
struct ParameterText {
    std::string name, alias;
};

// A row of the table of ops.
struct OpText {
    std::string name;
    Op op;
    std::string layout;  // of A and B: "nt", "nn", "tn" or "tt"
    GroupLayout group_layout;
    std::vector<ParameterText> parameters;
    size_t num_required;        // the first ones
    size_t num_positional;      // the ones after them are keyword-only
    std::string documentation;  // the text signature of inspect.signature, then the docstring
};

// Make the builtin of a row; it lives for the rest of the process. `module` is its __module__. Throws Error(kArgument):
// a layout or parameter that no op has. Throws PythonError.
Reference make_op(const OpText& text, PyObject* module);

// The call of an op of kind `op` under this process's policy, without operands.
Call make_call(Op op);

}  // namespace deep_gemm
