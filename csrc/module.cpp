// deep_gemm._C: problem, config, legality, heuristic, features, selector, tensor maps, dispatch and launch.
// Importing it opens no driver and initialises nothing.
#include <pybind11/pybind11.h>

#include "core/error.hpp"
#include "module.hpp"

namespace py = pybind11;

namespace deep_gemm {

const char* error_class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::kProblem: return "ProblemError";
        case ErrorKind::kConfig: return "ConfigError";
        case ErrorKind::kDtype: return "DtypeError";
        case ErrorKind::kShape: return "ShapeError";
        case ErrorKind::kLayout: return "LayoutError";
        case ErrorKind::kDevice: return "DeviceError";
        case ErrorKind::kArgument: return "ArgumentError";
        case ErrorKind::kLaunch: return "LaunchError";
        case ErrorKind::kModel: return "ModelError";
    }
    return "DeepGemmError";
}

void set_python_error(const Error& error) {
    py::object cls = py::module_::import("deep_gemm.errors").attr(error_class_name(error.kind()));
    PyErr_SetString(cls.ptr(), error.what());
}

}  // namespace deep_gemm

PYBIND11_MODULE(_C, m) {
    m.doc() = "Native core of deep_gemm.";
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const deep_gemm::Error& error) {
            deep_gemm::set_python_error(error);
        }
    });
    deep_gemm::bind_core(m);
    deep_gemm::bind_selector(m);
    deep_gemm::bind_runtime(m);
}
