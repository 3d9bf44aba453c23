#include "runtime/python_entry.hpp"

namespace deep_gemm {

PyObject* record_call(const PythonCall& call) {
    PyObject* module = PyImport_ImportModule("deep_gemm.tracing");
    PyObject* recorder = module == nullptr ? nullptr : PyObject_CallMethod(module, "get_recorder", "s", call.op);
    Py_XDECREF(module);
    if (recorder == nullptr) return nullptr;
    PyObject* result = PyObject_Vectorcall(recorder, call.values, size_t(call.num_positional), call.keyword_names);
    Py_DECREF(recorder);
    return result;
}

}  // namespace deep_gemm
