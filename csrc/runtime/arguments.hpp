// Arguments of the ops, which are C functions called without a tuple or a dict of arguments (METH_FASTCALL |
// METH_KEYWORDS).
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

struct Signature {
    const char* op;
    const char* const* names;
    size_t num_names;
    size_t num_required;                   // the first ones
    size_t num_positional;                 // the ones after them are keyword-only
    const char* const* aliases = nullptr;  // other names as keywords, beside `names`; an entry may be null
};

// Put each argument into the slot of its name; slots not given stay null. Throws Error(kArgument): unknown, missing or
// repeated.
void bind_arguments(const Signature& signature, PyObject* const* arguments, Py_ssize_t num_positional,
                    PyObject* keyword_names, PyObject** slots);

// `object` is borrowed and may be null (not given) in all of these. They throw Error(kArgument), naming `name`.
bool is_given(PyObject* object);                           // neither null nor None
float parse_factor(const char* name, PyObject* object);    // any finite number; 1 when not given
void check_flag(const char* name, PyObject* object);       // a bool
uint8_t parse_compiled_dims_argument(PyObject* object);    // None, or a subset of "mnk" in any order
bool parse_flag(const char* name, PyObject* object);       // a bool, which must be given
std::optional<Recipe> parse_recipe(PyObject* object);      // None, (1, 128, 128) or (1, 1, 128)
HeadSplits parse_head_splits(PyObject* object);            // three integers >= 0, left + right > 0
int64_t parse_expected_m(PyObject* object);                // an integer >= 0, which must be given
std::vector<int64_t> parse_group_sizes(PyObject* object);  // ks: a list or tuple of integers within 0..2^31 - 1

// The stream to launch on: torch's current one of GPU `ordinal` when not given (the legacy default stream for operands
// that are no tensors), the handle of a torch.cuda.Stream, or the number itself.
void* parse_stream(PyObject* object, int ordinal, bool is_described);

// The type rules of `stream` alone, for ops that launch nothing.
void check_stream(PyObject* object);

}  // namespace deep_gemm
