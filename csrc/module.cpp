// deep_gemm._C: problem, config, legality, heuristic, features, selector, tensor maps, dispatch and launch.
// Importing it opens no driver and initialises nothing.
#include "module.hpp"

#include <pybind11/pybind11.h>

#include "core/bind_errors.hpp"
#include "core/error.hpp"
#include "core/python.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
    m.doc() = "Native core of deep_gemm.";
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const deep_gemm::Error& error) {
            deep_gemm::set_python_error(error);
        } catch (const deep_gemm::PythonError&) {
            // Python's error is set already.
        }
    });
    deep_gemm::bind_core(m);
    deep_gemm::bind_selector(m);
    deep_gemm::bind_runtime(m);
    deep_gemm::type_errors_of_calls(m);
}
