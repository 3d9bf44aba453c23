// What every C function that Python calls directly, past pybind11, has around its body.
#pragma once

#include <Python.h>
#include <pybind11/pybind11.h>

#include <exception>

#include "core/error.hpp"
#include "module.hpp"

namespace deep_gemm {

using FastFunction = PyObject* (*)(PyObject* self, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names);

inline PyMethodDef make_method(const char* name, FastFunction function, const char* documentation) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS, documentation};
}

// Run `body` and turn what it throws into a Python error; returns None.
template <class Body>
PyObject* guarded(const Body& body) {
    try {
        body();
        Py_RETURN_NONE;
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
