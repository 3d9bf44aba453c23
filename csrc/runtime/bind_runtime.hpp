// The parts of bind_runtime, and what they share.
#pragma once

#include "core/bind_values.hpp"
#include "core/problem.hpp"
#include "runtime/arguments.hpp"

namespace deep_gemm {

void bind_kernel(pybind11::module_& m);
void bind_ops(pybind11::module_& m);

inline int parse_num_sms(PyObject* num_sms) {
    constexpr IntegerField kNumSmsField{"num_sms", 0, Problem::kMaxSms, 0, false};
    return int(parse_integer(num_sms, kNumSmsField));
}

// The ordinal of a CUDA device; that of the current one for None.
int parse_ordinal(PyObject* ordinal);

}  // namespace deep_gemm
