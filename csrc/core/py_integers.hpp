// Integers from Python without truncation: bool, float, strings and numbers outside 64 bits are typed errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/problem.hpp"
#include "core/python.hpp"

namespace deep_gemm {

// An int, or what converts to one by __index__ (a NumPy integer); a number outside 64 bits is the nearest inside.
// Nothing for a bool, which is an int to Python but not to us, and for everything else.
inline std::optional<int64_t> to_integer(PyObject* object) {
    if (PyBool_Check(object) || !PyIndex_Check(object)) return std::nullopt;
    const Reference index = Reference::steal(PyNumber_Index(object));
    int overflow = 0;
    const int64_t value = index ? PyLong_AsLongLongAndOverflow(index.get(), &overflow) : 0;
    PyErr_Clear();
    if (!index) return std::nullopt;
    return overflow == 0 ? value : overflow > 0 ? INT64_MAX : INT64_MIN;
}

// An integer within the range of `field`. Throws Error(kind).
inline int64_t checked_integer(Borrowed object, const IntegerField& field, ErrorKind kind) {
    const std::optional<int64_t> value = to_integer(object);
    if (value && *value >= field.minimum && *value <= field.maximum) return *value;
    const std::string given = std::string(field.name) + " = " + short_repr(object) + ": ";
    if (!value) throw Error(kind, given + "must be an integer; pass an int");
    throw Error(kind, given + "must be within " + std::to_string(field.minimum) + ".." + std::to_string(field.maximum) +
                          "; pass a number in this range");
}

}  // namespace deep_gemm
