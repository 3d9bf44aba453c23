// The parts that make up deep_gemm._C, and the one way in which they raise typed Python errors.
#pragma once

#include <pybind11/pybind11.h>

#include "core/error.hpp"

namespace deep_gemm {

void bind_core(pybind11::module_& m);
void bind_selector(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);

// Set the Python exception that belongs to `error`; for entry points that do not pass through pybind11.
void set_python_error(const Error& error);

}  // namespace deep_gemm
