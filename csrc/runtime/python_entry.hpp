// What every C function that Python calls directly, past pybind11, has around its body.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <exception>

#include "core/error.hpp"
#include "module.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

using FastFunction = PyObject* (*)(PyObject* self, PyObject* const* values, Py_ssize_t num_positional,
                                   PyObject* keyword_names);

inline PyMethodDef make_method(const char* name, FastFunction function, const char* documentation) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS,
            documentation};
}

// What Python called, all borrowed.
struct PythonCall {
    const char* op;
    PyObject* const* values;
    Py_ssize_t num_positional;
    PyObject* keyword_names;
};

// Put the call into the graph that torch is recording, in place of running it.
PyObject* record_call(const PythonCall& call);

// Run `body`, the work of `call`, and turn what it throws into a Python error; returns None.
template <class Body>
PyObject* guarded(const PythonCall& call, const Body& body) {
    try {
        body();
        Py_RETURN_NONE;
    } catch (const RecordedCall&) {
        return record_call(call);
    } catch (const Error& error) {
        set_python_error(error);
    } catch (pybind11::error_already_set& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

}  // namespace deep_gemm
