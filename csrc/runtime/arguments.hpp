// Values of arguments. `object` is borrowed and may be null (not given) in all functions. They throw Error(kArgument)
// that names the argument.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "core/python.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

inline bool is_given(PyObject* object) { return object != nullptr && object != Py_None; }

// An integer as to_integer takes it, but of no tensor: reading a CUDA tensor would wait for the GPU.
std::optional<int64_t> to_host_integer(PyObject* object);
int64_t parse_integer(PyObject* object, const IntegerField& field);  // such an integer, within the range of `field`

Reference parse_pair(const char* name, PyObject* object);  // (data, scales) as a tuple; a list is copied
float parse_factor(const char* name, PyObject* object);    // any finite number; 1 when not given
void check_flag(const char* name, PyObject* object);       // a bool
uint8_t parse_compiled_dims_argument(PyObject* object);    // None, or a subset of "mnk" in any order
bool parse_flag(const char* name, PyObject* object);       // a bool, which must be given
void check_epilogue(PyObject* object);                     // False; others are SM100 only
std::optional<Recipe> parse_recipe(PyObject* object);      // None, (1, 128, 128) or (1, 1, 128)
HeadSplits parse_head_splits(PyObject* object);            // three integers >= 0, left + right > 0
int64_t parse_expected_m(PyObject* object, const char* name = "expected_m");  // an integer >= 0, which must be given
std::vector<int64_t> parse_group_sizes(PyObject* object);  // ks: a list or tuple of integers within 0..2^31 - 1

// The recipe of both operands, or one of each: recipe_a (1, 128) with recipe_b (128, 128) or (1, 128).
struct RecipeArguments {
    PyObject *both, *a, *b;
};
std::optional<Recipe> parse_recipes(const RecipeArguments& recipes);

// Whether the call is to signal the rows that are stored: then it gives a signal, else none. max_block_n is a hint for
// libraries that limit their tiles by it; here no tile is the wider for it, nor the narrower.
struct OverlapArguments {
    PyObject *is_enabled, *max_block_n, *signal;
};
bool parse_overlap(const OverlapArguments& overlap);

// The stream to launch on: the handle of a torch.cuda.Stream, or the number itself. When not given, torch's current one
// on GPU `ordinal`, or the legacy default stream for operands that are no tensors (`is_described`).
void* parse_stream(PyObject* object, int ordinal, bool is_described);

// The type rules of `stream` alone, for calls that launch nothing.
void check_stream(PyObject* object);

}  // namespace deep_gemm
