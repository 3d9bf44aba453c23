// What bound functions raise for arguments that they do not take.
#pragma once

#include "core/bind_values.hpp"

namespace deep_gemm {

// Let every function, method and constructor that `m` holds raise ArgumentError in place of pybind11's TypeError. To be
// called once, when all are bound.
void type_errors_of_calls(pybind11::module_& m);

}  // namespace deep_gemm
