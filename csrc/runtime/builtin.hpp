// Builtins: functions of Python written in C++ that carry a state. A state has a `PyMethodDef method` and is never
// freed, because builtins live for the rest of the process.
#pragma once

#include <Python.h>

#include <exception>
#include <memory>

#include "core/error.hpp"
#include "core/python.hpp"

namespace deep_gemm {

// The result of `body`, or null with Python's error set for what it throws.
template <class Body>
PyObject* call_guarded(const Body& body) {
    try {
        return body();
    } catch (const Error& error) {
        set_python_error(error);
    } catch (const PythonError&) {
        // Python's error is set already.
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// The `self` of such a builtin is a module that holds a pointer to the state: where `self` is a module, Python pickles
// and shows the builtin by its name.
template <class State>
inline PyModuleDef holder_definition{
    PyModuleDef_HEAD_INIT, "deep_gemm._C", nullptr, sizeof(State*), nullptr, nullptr, nullptr, nullptr, nullptr};

template <class State>
State& state_of(PyObject* self) {
    return **static_cast<State**>(PyModule_GetState(self));
}

// The state of a builtin of this kind; null for any other object.
template <class State>
State* find_state(PyObject* object) {
    PyObject* holder = PyCFunction_Check(object) ? PyCFunction_GET_SELF(object) : nullptr;
    const bool is_ours =
        holder != nullptr && PyModule_Check(holder) && PyModule_GetDef(holder) == &holder_definition<State>;
    return is_ours ? &state_of<State>(holder) : nullptr;
}

// A function of Python's calling conventions in the type that PyMethodDef has.
template <class Function>
PyCFunction as_method(Function* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// `module`: its __module__; may be null. Throws PythonError.
template <class State>
Reference make_builtin(std::unique_ptr<State> state, PyObject* module = nullptr) {
    const Reference holder = Reference::take(PyModule_Create(&holder_definition<State>));
    Reference function = Reference::take(PyCFunction_NewEx(&state->method, holder.get(), module));
    *static_cast<State**>(PyModule_GetState(holder.get())) = state.release();
    return function;
}

}  // namespace deep_gemm
