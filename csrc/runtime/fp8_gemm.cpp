#include "runtime/fp8_gemm.hpp"

#include <pybind11/pybind11.h>

#include <string>

#include "runtime/arguments.hpp"
#include "runtime/documentation.hpp"
#include "runtime/gemm_op.hpp"
#include "runtime/python_entry.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

enum Slot { kA, kB, kD, kC, kRecipe, kCompiledDims, kDisableUe8m0Cast, kAlpha, kBeta, kStream, kNumSlots };
constexpr const char* kNames[kNumSlots] = {
    "a", "b", "d", "c", "recipe", "compiled_dims", "disable_ue8m0_cast", "alpha", "beta", "stream"};

// The first four are kMemoryLayouts'; the names are literals because signatures keep their pointers.
constexpr const char* kOpNames[] = {"fp8_gemm_nt", "fp8_gemm_nn", "fp8_gemm_tn", "fp8_gemm_tt"};

// The pairs are kept alive with the views into them.
struct Pairs {
    py::tuple a, b;
};

void fill_pairs(const Pairs& pairs, const MemoryLayout& layout, GemmOperands& operands) {
    operands.a = make_oriented_operand("a", PyTuple_GET_ITEM(pairs.a.ptr(), 0), layout.is_a_transposed);
    operands.scale_a = make_oriented_operand("scale_a", PyTuple_GET_ITEM(pairs.a.ptr(), 1), layout.is_a_transposed);
    operands.b = make_oriented_operand("b", PyTuple_GET_ITEM(pairs.b.ptr(), 0), layout.is_b_transposed);
    operands.scale_b = make_oriented_operand("scale_b", PyTuple_GET_ITEM(pairs.b.ptr(), 1), layout.is_b_transposed);
}

GemmOptions parse_options(PyObject* const* slots) {
    check_flag("disable_ue8m0_cast", slots[kDisableUe8m0Cast]);
    return {.alpha = parse_factor("alpha", slots[kAlpha]),
            .beta = parse_factor("beta", slots[kBeta]),
            .compiled_dims = parse_compiled_dims_argument(slots[kCompiledDims]),
            .stream = slots[kStream]};
}

void run(const MemoryLayout& layout, PyObject* const* slots) {
    const Pairs pairs{parse_pair("a", slots[kA]), parse_pair("b", slots[kB])};
    const auto recipe = parse_recipe(slots[kRecipe]);
    GemmOptions options = parse_options(slots);
    GemmOperands operands;
    fill_pairs(pairs, layout, operands);
    operands.d = make_operand("d", slots[kD]);
    operands.c = make_c(slots[kC], operands.d);
    options.recipe = choose_recipe(recipe, operands.scale_a, operands.scale_b);
    run_gemm(operands, options);
}

template <size_t kLayout>
PyObject* fp8_gemm(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    constexpr Signature kSignature{kOpNames[kLayout], kNames, kNumSlots, kC, kAlpha};
    return guarded({kSignature.op, values, num_positional, keyword_names}, [&] {
        PyObject* slots[kNumSlots] = {};
        bind_arguments(kSignature, values, num_positional, keyword_names, slots);
        run(kMemoryLayouts[kLayout], slots);
    });
}

enum HeadSlot {
    kHeadA,
    kHeadB,
    kHeadD,
    kHeadSplits,
    kHeadRecipe,
    kHeadCompiledDims,
    kHeadDisableUe8m0Cast,
    kNumHeadSlots
};
constexpr const char* kHeadNames[kNumHeadSlots] = {
    "a", "b", "d", "head_splits", "recipe", "compiled_dims", "disable_ue8m0_cast"};
constexpr Signature kHeadSignature{"fp8_gemm_nt_skip_head_mid", kHeadNames, kNumHeadSlots, kHeadRecipe, kNumHeadSlots};

// The one recipe that callers have for it, so the only one with kernels.
void check_head_recipe(Recipe recipe) {
    if (recipe != Recipe::k1d2d)
        throw Error(ErrorKind::kArgument,
                    "recipe: fp8_gemm_nt_skip_head_mid takes scales 1x128 of A and 128x128 of B only; pass these and "
                    "(1, 128, 128) or None.");
}

void run_head_split(PyObject* const* slots) {
    const Pairs pairs{parse_pair("a", slots[kHeadA]), parse_pair("b", slots[kHeadB])};
    const auto recipe = parse_recipe(slots[kHeadRecipe]);
    check_flag("disable_ue8m0_cast", slots[kHeadDisableUe8m0Cast]);
    GemmOptions options{.heads = parse_head_splits(slots[kHeadSplits]),
                        .compiled_dims = parse_compiled_dims_argument(slots[kHeadCompiledDims])};
    GemmOperands operands;
    fill_pairs(pairs, kMemoryLayouts[0], operands);
    operands.d = make_operand("d", slots[kHeadD]);
    check_head_recipe(choose_recipe(recipe, operands.scale_a, operands.scale_b));
    run_gemm(operands, options);
}

PyObject* fp8_gemm_nt_skip_head_mid(PyObject*, PyObject* const* values, Py_ssize_t num_positional,
                                    PyObject* keyword_names) {
    return guarded({kHeadSignature.op, values, num_positional, keyword_names}, [&] {
        PyObject* slots[kNumHeadSlots] = {};
        bind_arguments(kHeadSignature, values, num_positional, keyword_names, slots);
        run_head_split(slots);
    });
}

}  // namespace

std::span<PyMethodDef> fp8_gemm_methods() {
    static const std::string documentation[] = {
        fp8_gemm_documentation(kMemoryLayouts[0]), fp8_gemm_documentation(kMemoryLayouts[1]),
        fp8_gemm_documentation(kMemoryLayouts[2]), fp8_gemm_documentation(kMemoryLayouts[3]),
        skip_head_mid_documentation()};
    static PyMethodDef methods[] = {
        make_method(kOpNames[0], &fp8_gemm<0>, documentation[0].c_str()),
        make_method(kOpNames[1], &fp8_gemm<1>, documentation[1].c_str()),
        make_method(kOpNames[2], &fp8_gemm<2>, documentation[2].c_str()),
        make_method(kOpNames[3], &fp8_gemm<3>, documentation[3].c_str()),
        make_method(kHeadSignature.op, &fp8_gemm_nt_skip_head_mid, documentation[4].c_str())};
    return methods;
}

}  // namespace deep_gemm
