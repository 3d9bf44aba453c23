#include "runtime/bf16_gemm.hpp"

#include <string>

#include "runtime/arguments.hpp"
#include "runtime/documentation.hpp"
#include "runtime/gemm_op.hpp"
#include "runtime/python_entry.hpp"

namespace deep_gemm {
namespace {

enum Slot { kA, kB, kD, kC, kCompiledDims, kAlpha, kBeta, kStream, kNumSlots };
constexpr const char* kNames[kNumSlots] = {"a", "b", "d", "c", "compiled_dims", "alpha", "beta", "stream"};
constexpr const char* kOpNames[] = {"bf16_gemm_nt", "bf16_gemm_nn", "bf16_gemm_tn",
                                    "bf16_gemm_tt"};  // as kMemoryLayouts

void run(const MemoryLayout& layout, PyObject* const* slots) {
    const GemmOptions options{.op = Op::kBf16Gemm,
                              .alpha = parse_factor("alpha", slots[kAlpha]),
                              .beta = parse_factor("beta", slots[kBeta]),
                              .compiled_dims = parse_compiled_dims_argument(slots[kCompiledDims]),
                              .stream = slots[kStream]};
    GemmOperands operands;
    operands.a = make_oriented_operand("a", slots[kA], layout.is_a_transposed);
    operands.b = make_oriented_operand("b", slots[kB], layout.is_b_transposed);
    operands.d = make_operand("d", slots[kD]);
    operands.c = make_c(slots[kC], operands.d);
    run_gemm(operands, options);
}

template <size_t kLayout>
PyObject* bf16_gemm(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    constexpr Signature kSignature{kOpNames[kLayout], kNames, kNumSlots, kC, kAlpha};
    return guarded({kSignature.op, values, num_positional, keyword_names}, [&] {
        PyObject* slots[kNumSlots] = {};
        bind_arguments(kSignature, values, num_positional, keyword_names, slots);
        run(kMemoryLayouts[kLayout], slots);
    });
}

}  // namespace

std::span<PyMethodDef> bf16_gemm_methods() {
    static const std::string documentation[] = {
        bf16_gemm_documentation(kMemoryLayouts[0]), bf16_gemm_documentation(kMemoryLayouts[1]),
        bf16_gemm_documentation(kMemoryLayouts[2]), bf16_gemm_documentation(kMemoryLayouts[3])};
    static PyMethodDef methods[] = {make_method(kOpNames[0], &bf16_gemm<0>, documentation[0].c_str()),
                                    make_method(kOpNames[1], &bf16_gemm<1>, documentation[1].c_str()),
                                    make_method(kOpNames[2], &bf16_gemm<2>, documentation[2].c_str()),
                                    make_method(kOpNames[3], &bf16_gemm<3>, documentation[3].c_str())};
    return methods;
}

}  // namespace deep_gemm
