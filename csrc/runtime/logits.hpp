// Attention index logits: what a call of them has besides the operands of a product, and how it is made from Python's
// arguments. The queries are A, their weights the scales of A, the keys B, and the logits D.
#pragma once

#include "core/python.hpp"
#include "runtime/call.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"

namespace deep_gemm {

struct LogitsOperands {
    // Positions start <= j < end that a token sees; or the lengths of sequences and the pages that each of them has.
    Operand first{}, second{};
    Operand schedule{}, indices{};  // paged only
    int64_t columns = 0;            // of D
    bool is_clean = false, is_compressed = false;
    Dtype dtype = Dtype::kFloat32;  // of D
    Reference result;               // D, where the op allocates it

    const Operand* begin() const { return &first; }
    const Operand* end() const { return &indices + 1; }
};

// Sizes of the queries [tokens, heads, head_dim] or [sequences, next_n, heads, head_dim].
struct QuerySizes {
    int64_t tokens, heads, head_dim;
    int64_t next_n = 1;
};

QuerySizes query_sizes(const Call& call);

// Values of the arguments, all borrowed; null: not given. The queries may be a pair with None.
struct LogitsValues {
    PyObject *q, *kv, *weights, *first, *second, *schedule, *indices, *columns, *is_clean, *dtype;
};

// Read the arguments into `call` and run it; returns the logits. Throws Error, PythonError.
Reference run_logits(const LogitsValues& values, Call& call);

// Launch `kernel`; the operands were checked. Throws Error(kLaunch), Error(kLayout).
void launch_logits(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, void* stream);

}  // namespace deep_gemm
