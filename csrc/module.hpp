// The parts that make up deep_gemm._C.
#pragma once

#include "core/bind_values.hpp"

namespace deep_gemm {

void bind_core(pybind11::module_& m);
void bind_selector(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);

}  // namespace deep_gemm
