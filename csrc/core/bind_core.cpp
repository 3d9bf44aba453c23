// The Python faces of op kinds, problem, config, device, legality, candidates, heuristic and features.
#include "core/bindings.hpp"
#include "module.hpp"

namespace deep_gemm {

void bind_core(pybind11::module_& m) {
    bind_op_kinds(m);
    bind_problem(m);
    bind_config(m);
    bind_device(m);
    bind_legality(m);
    bind_heuristic(m);
    bind_config_features(m);
}

}  // namespace deep_gemm
