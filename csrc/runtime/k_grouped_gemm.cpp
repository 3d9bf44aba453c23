#include "runtime/k_grouped_gemm.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/py_integers.hpp"
#include "runtime/arguments.hpp"
#include "runtime/gemm_op.hpp"
#include "runtime/grouped_documentation.hpp"
#include "runtime/grouped_op.hpp"
#include "runtime/python_entry.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

constexpr size_t kMaxSlots = 9;
enum Slot { kA, kB, kD, kKs, kKsTensor, kC, kFirstOption };

constexpr const char* kFp8Names[] = {"a", "b", "d", "ks", "ks_tensor", "c", "recipe", "compiled_dims", "stream"};
constexpr const char* kBf16Names[] = {"a", "b", "d", "ks", "ks_tensor", "c", "compiled_dims", "stream"};
constexpr const char* kAliases[kMaxSlots] = {nullptr, nullptr, nullptr, "ks_cpu", "grouped_layout"};

struct KGroupedOp {
    Op op;
    GroupLayout layout;  // of nt: blocks; of tn: joint, and both operands come transposed
    Signature signature;

    constexpr bool is_transposed() const { return layout == GroupLayout::kJoint; }
};

template <size_t kNumNames>
constexpr KGroupedOp make_op(Op op, const char* name, GroupLayout layout, const char* const (&names)[kNumNames]) {
    return {op, layout, {name, names, kNumNames, kKsTensor, kNumNames - 1, kAliases}};
}

constexpr KGroupedOp kKGroupedOps[] = {
    make_op(Op::kKGroupedFp8Contiguous, "k_grouped_fp8_gemm_nt_contiguous", GroupLayout::kBlocks, kFp8Names),
    make_op(Op::kKGroupedFp8Contiguous, "k_grouped_fp8_gemm_tn_contiguous", GroupLayout::kJoint, kFp8Names),
    make_op(Op::kKGroupedBf16Contiguous, "k_grouped_bf16_gemm_tn_contiguous", GroupLayout::kJoint, kBf16Names)};

void check_recipe(PyObject* object) {
    if (parse_recipe(object).value_or(Recipe::k1d1d) != Recipe::k1d1d)
        throw Error(ErrorKind::kArgument,
                    "recipe = " + short_repr(object) +
                        ": groups of K have both operands scaled 1x128; pass (1, 1, 128) or None.");
}

void parse_options(const KGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    PyObject* const* next = slots + kFirstOption;
    if (is_fp8(op.op)) check_recipe(*next++);
    call.options.compiled_dims = parse_compiled_dims_argument(*next++);
    call.options.stream = *next;
    call.ks = parse_group_sizes(slots[kKs]);
}

void run_outputs(PyObject* const* slots, GroupedCall& call) {
    call.operands.d = make_operand("d", slots[kD]);
    call.operands.c = make_c(slots[kC], call.operands.d);
    if (is_given(slots[kKsTensor])) call.groups = make_operand("ks_tensor", slots[kKsTensor]);
    run_grouped(call);
}

void run_fp8(const KGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    const py::tuple a = parse_pair("a", slots[kA]), b = parse_pair("b", slots[kB]);
    GemmOperands& operands = call.operands;
    operands.a = make_oriented_operand("a", PyTuple_GET_ITEM(a.ptr(), 0), op.is_transposed());
    operands.scale_a = make_oriented_operand("scale_a", PyTuple_GET_ITEM(a.ptr(), 1), op.is_transposed());
    operands.b = make_oriented_operand("b", PyTuple_GET_ITEM(b.ptr(), 0), op.is_transposed());
    operands.scale_b = make_oriented_operand("scale_b", PyTuple_GET_ITEM(b.ptr(), 1), op.is_transposed());
    call.options.recipe = Recipe::k1d1d;
    run_outputs(slots, call);
}

void run_bf16(const KGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    call.operands.a = make_oriented_operand("a", slots[kA], op.is_transposed());
    call.operands.b = make_oriented_operand("b", slots[kB], op.is_transposed());
    run_outputs(slots, call);
}

template <size_t kIndex>
PyObject* k_grouped_gemm(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    constexpr const KGroupedOp& kOp = kKGroupedOps[kIndex];
    return guarded({kOp.signature.op, values, num_positional, keyword_names}, [&] {
        PyObject* slots[kMaxSlots] = {};
        bind_arguments(kOp.signature, values, num_positional, keyword_names, slots);
        GroupedCall call{.options = {.op = kOp.op}, .layout = kOp.layout};
        parse_options(kOp, slots, call);
        is_fp8(kOp.op) ? run_fp8(kOp, slots, call) : run_bf16(kOp, slots, call);
    });
}

template <size_t... kIndices>
auto make_methods(std::index_sequence<kIndices...>) {
    static const std::string documentation[] = {k_grouped_documentation(
        kKGroupedOps[kIndices].signature.op, kKGroupedOps[kIndices].op, kKGroupedOps[kIndices].layout)...};
    return std::array{make_method(kKGroupedOps[kIndices].signature.op, &k_grouped_gemm<kIndices>,
                                  documentation[kIndices].c_str())...};
}

}  // namespace

std::span<PyMethodDef> k_grouped_gemm_methods() {
    static auto methods = make_methods(std::make_index_sequence<std::size(kKGroupedOps)>());
    return methods;
}

}  // namespace deep_gemm
