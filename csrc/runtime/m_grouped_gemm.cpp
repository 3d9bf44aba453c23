#include "runtime/m_grouped_gemm.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/arguments.hpp"
#include "runtime/gemm_op.hpp"
#include "runtime/grouped_documentation.hpp"
#include "runtime/grouped_op.hpp"
#include "runtime/policy.hpp"
#include "runtime/python_entry.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

constexpr size_t kMaxSlots = 9;
enum Slot { kA, kB, kD, kGroups, kFirstOption };

// Masked ops have expected_m before, FP8 ops a recipe and disable_ue8m0_cast around compiled_dims.
constexpr const char* kFp8Contiguous[] = {
    "a", "b", "d", "m_indices", "recipe", "compiled_dims", "disable_ue8m0_cast", "stream"};
constexpr const char* kBf16Contiguous[] = {"a", "b", "d", "m_indices", "compiled_dims", "stream"};
constexpr const char* kFp8Masked[] = {
    "a", "b", "d", "masked_m", "expected_m", "recipe", "compiled_dims", "disable_ue8m0_cast", "stream"};
constexpr const char* kBf16Masked[] = {"a", "b", "d", "masked_m", "expected_m", "compiled_dims", "stream"};
constexpr const char* kContiguousAliases[kMaxSlots] = {nullptr, nullptr, nullptr, "grouped_layout"};
constexpr const char* kMaskedAliases[kMaxSlots] = {nullptr, nullptr, nullptr, nullptr, "expected_m_per_group"};

struct MGroupedOp {
    Op op;
    bool is_b_transposed;
    Signature signature;
};

template <size_t kNumNames>
constexpr MGroupedOp make_op(Op op, const char* name, bool is_b_transposed, const char* const (&names)[kNumNames]) {
    const bool is_masked = grouping_of(op) == Grouping::kMMasked;
    const size_t num_required = is_masked ? kFirstOption + 1 : kFirstOption;
    return {op,
            is_b_transposed,
            {name, names, kNumNames, num_required, kNumNames - 1, is_masked ? kMaskedAliases : kContiguousAliases}};
}

constexpr MGroupedOp kMGroupedOps[] = {
    make_op(Op::kMGroupedFp8Contiguous, "m_grouped_fp8_gemm_nt_contiguous", false, kFp8Contiguous),
    make_op(Op::kMGroupedFp8Contiguous, "m_grouped_fp8_gemm_nn_contiguous", true, kFp8Contiguous),
    make_op(Op::kMGroupedBf16Contiguous, "m_grouped_bf16_gemm_nt_contiguous", false, kBf16Contiguous),
    make_op(Op::kMGroupedBf16Contiguous, "m_grouped_bf16_gemm_nn_contiguous", true, kBf16Contiguous),
    make_op(Op::kMGroupedFp8Masked, "m_grouped_fp8_gemm_nt_masked", false, kFp8Masked),
    make_op(Op::kMGroupedBf16Masked, "m_grouped_bf16_gemm_nt_masked", false, kBf16Masked)};

// Options lie one after the other, those that the op has.
void parse_options(const MGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    PyObject* const* next = slots + kFirstOption;
    if (grouping_of(op.op) == Grouping::kMMasked) call.expected_m = parse_expected_m(*next++);
    if (is_fp8(op.op)) call.options.recipe = parse_recipe(*next++).value_or(Recipe::k1d2d);
    call.options.compiled_dims = parse_compiled_dims_argument(*next++);
    if (is_fp8(op.op)) check_flag("disable_ue8m0_cast", *next++);
    call.options.stream = *next;
}

void run_fp8(const MGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    const py::tuple a = parse_pair("a", slots[kA]), b = parse_pair("b", slots[kB]);
    GemmOperands& operands = call.operands;
    operands.a = make_operand("a", PyTuple_GET_ITEM(a.ptr(), 0));
    operands.scale_a = make_operand("scale_a", PyTuple_GET_ITEM(a.ptr(), 1));
    operands.b = make_oriented_operand("b", PyTuple_GET_ITEM(b.ptr(), 0), op.is_b_transposed);
    operands.scale_b = make_oriented_operand("scale_b", PyTuple_GET_ITEM(b.ptr(), 1), op.is_b_transposed);
    operands.d = make_operand("d", slots[kD]);
    call.groups = make_operand(op.signature.names[kGroups], slots[kGroups]);
    run_grouped(call);
}

void run_bf16(const MGroupedOp& op, PyObject* const* slots, GroupedCall& call) {
    call.operands.a = make_operand("a", slots[kA]);
    call.operands.b = make_oriented_operand("b", slots[kB], op.is_b_transposed);
    call.operands.d = make_operand("d", slots[kD]);
    call.groups = make_operand(op.signature.names[kGroups], slots[kGroups]);
    run_grouped(call);
}

template <size_t kIndex>
PyObject* m_grouped_gemm(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    constexpr const MGroupedOp& kOp = kMGroupedOps[kIndex];
    return guarded({kOp.signature.op, values, num_positional, keyword_names}, [&] {
        PyObject* slots[kMaxSlots] = {};
        bind_arguments(kOp.signature, values, num_positional, keyword_names, slots);
        GroupedCall call{.options = {.op = kOp.op}, .alignment = get_mk_alignment()};
        parse_options(kOp, slots, call);
        is_fp8(kOp.op) ? run_fp8(kOp, slots, call) : run_bf16(kOp, slots, call);
    });
}

template <size_t... kIndices>
auto make_methods(std::index_sequence<kIndices...>) {
    static const std::string documentation[] = {m_grouped_documentation(
        kMGroupedOps[kIndices].signature.op, kMGroupedOps[kIndices].op, kMGroupedOps[kIndices].is_b_transposed)...};
    return std::array{make_method(kMGroupedOps[kIndices].signature.op, &m_grouped_gemm<kIndices>,
                                  documentation[kIndices].c_str())...};
}

}  // namespace

std::span<PyMethodDef> m_grouped_gemm_methods() {
    static auto methods = make_methods(std::make_index_sequence<std::size(kMGroupedOps)>());
    return methods;
}

}  // namespace deep_gemm
