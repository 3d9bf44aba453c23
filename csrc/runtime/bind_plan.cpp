// The calls of deep_gemm.plan: problems and configs are bound objects there.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bind_values.hpp"
#include "runtime/plan.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

// Throws PythonError in place of pybind11's exception: callers of plan.hpp know only that.
template <class Result = py::tuple, class... Arguments>
Result call_plan(const char* function, const Arguments&... arguments) {
    try {
        return py::module_::import("deep_gemm.plan").attr(function)(arguments...).template cast<Result>();
    } catch (py::error_already_set& error) {
        error.restore();
        throw PythonError();
    }
}

CompiledKernel take_kernel(py::object cubin, const py::object& name) {
    if (!PyBytes_Check(cubin.ptr())) throw py::type_error("deep_gemm.plan: a cubin must be bytes");
    return {.cubin = Reference::steal(cubin.release().ptr()), .name = name.cast<std::string>()};
}

KernelPlan take_plan(const py::tuple& plan) {
    return {plan[0].cast<Config>(), plan[1].cast<std::optional<Config>>(), take_kernel(plan[2], plan[3])};
}

}  // namespace

KernelPlan plan_kernel(const Problem& problem, int ordinal) { return take_plan(call_plan("plan", problem, ordinal)); }

KernelPlan plan_kernel_without_clusters(const Problem& problem, int ordinal) {
    return take_plan(call_plan("plan_without_clusters", problem, ordinal));
}

void note_unplanned(const Problem& problem) { call_plan<py::object>("note_unplanned", problem); }

void record_problem(const Problem& problem) { call_plan<py::object>("record_call", problem); }

void note_missing_copies(const std::string& reason) { call_plan<py::object>("note_missing_copies", reason); }

CompiledKernel rebuild_kernel(const Problem& problem, const KernelPlan& plan) {
    const py::tuple rebuilt = call_plan("rebuild", problem, plan.config, plan.second);
    CompiledKernel kernel = take_kernel(rebuilt[0], rebuilt[1]);
    kernel.compiler = rebuilt[2].cast<std::string>();
    return kernel;
}

CompiledPlainKernel compile_plain_kernel(const std::string& name,
                                         const std::vector<std::pair<std::string, int64_t>>& constants,
                                         bool is_refused) {
    const py::tuple built = call_plan("get_plain_kernel", name, constants, is_refused);
    return {take_kernel(built[0], built[1]), built[2].cast<size_t>()};
}

}  // namespace deep_gemm
