// The parts of bind_core, and what they share with other files that bind.
#pragma once

#include "core/bind_values.hpp"

namespace deep_gemm {

void bind_op_kinds(pybind11::module_& m);
void bind_problem(pybind11::module_& m);
void bind_config(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_legality(pybind11::module_& m);
void bind_heuristic(pybind11::module_& m);
void bind_config_features(pybind11::module_& m);

}  // namespace deep_gemm
