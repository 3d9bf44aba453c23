// Integers from Python without truncation: bool, float, strings and numbers outside 64 bits are typed errors.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// A short printable form of any object, for messages; never raises.
inline std::string short_repr(pybind11::handle value) {
    pybind11::object text = pybind11::reinterpret_steal<pybind11::object>(PyObject_Repr(value.ptr()));
    if (!text) {
        PyErr_Clear();
        return "<unprintable>";
    }
    const auto result = text.cast<std::string>();
    return result.size() <= 80 ? result : result.substr(0, 77) + "...";
}

// Python's int, or a NumPy integer scalar through __index__; bool is an int to Python but not to us.
inline int64_t checked_integer(pybind11::handle value, const IntegerField& field, ErrorKind kind) {
    const auto fail = [&](const char* rule) -> Error {
        return Error(kind, std::string(field.name) + " = " + short_repr(value) + ": " + rule);
    };
    if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) throw fail("must be an integer; pass an int");
    pybind11::object index = pybind11::reinterpret_steal<pybind11::object>(PyNumber_Index(value.ptr()));
    if (!index) {
        PyErr_Clear();
        throw fail("must be an integer; pass an int");
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || number < field.minimum || number > field.maximum) {
        const std::string rule = "must be within " + std::to_string(field.minimum) + ".." +
                                 std::to_string(field.maximum) + "; pass a number in this range";
        throw fail(rule.c_str());
    }
    return number;
}

}  // namespace deep_gemm
