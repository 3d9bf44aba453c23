// The little of Python's C API that the native core needs besides pybind11, which only the bind_*.cpp files include: it
// takes the compiler longer than all that they bind.
#pragma once

#include <Python.h>

#include <string>
#include <utility>

#include "core/error.hpp"

namespace deep_gemm {

// Thrown where a call of the C API failed; Python's error is set and stays set.
struct PythonError {};

// An owned reference, or null.
class Reference {
 public:
    Reference() = default;
    Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Reference& operator=(Reference&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Reference() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

    // Own `object`, a new reference or null.
    static Reference steal(PyObject* object) { return Reference(object); }
    // Own `object`, the result of a call of the C API. Throws PythonError where the call failed.
    static Reference take(PyObject* object) {
        if (object == nullptr) throw PythonError();
        return Reference(object);
    }
    static Reference borrow(PyObject* object) { return Reference(Py_XNewRef(object)); }

 private:
    explicit Reference(PyObject* object) : object_(object) {}
    PyObject* object_ = nullptr;
};

// A borrowed object, also from a handle of pybind11.
class Borrowed {
 public:
    Borrowed(PyObject* object) : object_(object) {}
    template <class Handle>
        requires requires(const Handle& handle) { handle.ptr(); }
    Borrowed(const Handle& handle) : object_(handle.ptr()) {}

    operator PyObject*() const { return object_; }

 private:
    PyObject* object_;
};

// The attribute `name` of a module, which is imported where it is not yet. Throws PythonError.
Reference import_attribute(const char* module, const char* name);

// The bytes of a str. Throws PythonError: not a str, or one with lone surrogates.
std::string utf8_of(PyObject* text);

// str(object). Throws PythonError.
std::string str(PyObject* object);

// Whether an object is a tensor, or a list, tuple, set or dict with one in it. To print the numbers of one whose memory
// is freed would crash. What nests deeper than anybody means to is taken for such an object. Throws PythonError.
bool holds_tensor(Borrowed object);

// A short printable form of any object for messages: at most 80 bytes of UTF-8. Never raises.
std::string short_repr(Borrowed object);

// The first line of the pending error, which is cleared; torch appends a C++ stack.
std::string take_error_text();

// Set the Python exception of `error`.
void set_python_error(const Error& error);

}  // namespace deep_gemm
