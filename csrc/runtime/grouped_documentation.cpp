#include "runtime/grouped_documentation.hpp"

#include "runtime/documentation_parts.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kStream =
    "    stream: torch.cuda.Stream or raw handle to launch on instead of the current stream; torch.compile breaks the "
    "graph at it.\n";

constexpr const char* kRecipe =
    R"(    recipe: granularity of the scales: (1, 128, 128), the default; (1, 1, 128): those of B are per row, too, with n in place of
        ceil(n / 128).
)";

constexpr const char* kContiguousGroups =
    R"(    d: bfloat16 or float32 [m, n], written; shares no memory with the others.
    m_indices: int32 [m], contiguous: the group of each row, or -1 for padding. The rows of every group start at a multiple of
        get_mk_alignment_for_contiguous_layout(). Also called grouped_layout.
)";

constexpr const char* kMaskedGroups =
    R"(    d: bfloat16 or float32 [num_groups, max_m, n], written; shares no memory with the others.
    masked_m: int32 [num_groups], contiguous: rows that each group has, within 0..max_m; the kernel reads it, so a CUDA graph may change it.
    expected_m: rows of a group on average: any int >= 0, a hint that only the choice of a config looks at. Also called expected_m_per_group.
)";

constexpr const char* kDividedGroups = R"(    d: float32 [num_groups, m, n], written; shares no memory with the others.
    ks: list or tuple of ints, the K of each group: multiples of 128, 0 allowed. Also called ks_cpu.
    ks_tensor: int32 [num_groups], contiguous: the same on the device, which the kernel reads. Without it the call copies ks there, and waits for
        that. Also called grouped_layout.
    c: float32 [num_groups, m, n], rows contiguous, or None; it may be d itself, and else shares no memory with it.
)";

constexpr const char* kContiguousRules = R"(
Padding gets +0, whatever the rows of A hold. On a GPU, a row whose index is not its tile's group is stored as NaN; on the CPU it is an
ArgumentError. m = 0, n = 0 or num_groups = 0: nothing happens. k = 0: d is 0.
)";

constexpr const char* kMaskedRules = R"(
Rows of a group from masked_m on are written with anything or not at all. m = 0, n = 0 or num_groups = 0: nothing happens. k = 0: d is 0.
)";

constexpr const char* kDividedRules = R"(
A group whose K is 0 has d = c, or 0. m = 0, n = 0 or num_groups = 0: nothing happens.
)";

constexpr const char* kRows = R"(
Rows in memory are contiguous; those of A, B and d start 16-byte aligned, rows and groups at pitches that are multiples of 16 bytes. Scales may
have any strides. The stride of a dimension of size 1 is ignored.
)";

constexpr const char* kTransposingB = R"(
The kernels read FP8 along K. A B that is contiguous along n is first copied by a transposing kernel, into memory of torch's allocator on the
same stream: one more launch where the matrices of the groups lie directly behind one another and k is a multiple of 16, else one for each group.
)";

constexpr const char* kCpu =
    "CPU tensors run the reference. Call it once before capturing a CUDA graph: the first call may compile and load a "
    "kernel.\n\n";

// The text signature that ends the first line.
std::string signature(const std::string& name, const std::string& arguments) {
    return name + "(" + arguments + ", *, stream=None)\n--\n\n";
}

std::string dims(const std::string& groups, const std::string& rows, const std::string& columns, bool is_transposed) {
    return "[" + groups + (is_transposed ? columns + ", " + rows : rows + ", " + columns) + "]";
}

std::string pair(const char* letter, const std::string& data, const std::string& scales) {
    const std::string upper(1, char(letter[0] - 'a' + 'A'));
    return std::string("    ") + letter + ": pair (" + upper + ", scale_" + letter + "): " + upper + " float8_e4m3fn " +
           data + ", scale_" + letter + " float32 " + scales + ".\n";
}

std::string m_grouped_operands(Op op, bool is_b_transposed) {
    const bool is_masked = grouping_of(op) == Grouping::kMMasked;
    const std::string groups = is_masked ? "num_groups, " : "", rows = is_masked ? "max_m" : "m";
    const std::string a = dims(groups, rows, "k", false), b = dims("num_groups, ", "n", "k", is_b_transposed);
    if (!is_fp8(op)) return "Args:\n    a: A bfloat16 " + a + ".\n    b: B bfloat16 " + b + ".\n";
    return "Args:\n" + pair("a", a, dims(groups, rows, "ceil(k / 128)", false)) +
           pair("b", b, dims("num_groups, ", "ceil(n / 128)", "ceil(k / 128)", is_b_transposed));
}

std::string k_grouped_operands(Op op, GroupLayout layout) {
    if (layout == GroupLayout::kBlocks)
        return "Args:\n" + pair("a", "1-D, contiguous: [m, k] of one group after the other", "[m, sum_k / 128]") +
               pair("b", "1-D, contiguous: [n, k] of one group after the other", "[n, sum_k / 128]");
    if (!is_fp8(op)) return "Args:\n    a: A bfloat16 [sum_k, m].\n    b: B bfloat16 [sum_k, n].\n";
    return "Args:\n" + pair("a", "[sum_k, m]", "[sum_k / 128, m]") + pair("b", "[sum_k, n]", "[sum_k / 128, n]");
}

std::string m_grouped_arguments(Op op) {
    const std::string groups = grouping_of(op) == Grouping::kMMasked ? "masked_m, expected_m" : "m_indices";
    return "a, b, d, " + groups +
           (is_fp8(op) ? ", recipe=None, compiled_dims=None, disable_ue8m0_cast=False" : ", compiled_dims=None");
}

const char* kind_of(Op op) { return is_fp8(op) ? "scaled FP8" : "BF16"; }

}  // namespace

std::string m_grouped_documentation(const std::string& name, Op op, bool is_b_transposed) {
    const bool is_masked = grouping_of(op) == Grouping::kMMasked;
    const std::string b = is_b_transposed ? "B[group]" : "B[group].T";
    const std::string formula = is_masked ? "d[group] = A[group] @ " + b + " for the rows that each group has"
                                          : "d[i] = A[i] @ " + b + " for the group of each row";
    return signature(name, m_grouped_arguments(op)) + "Compute " + formula + ", from " + kind_of(op) +
           " operands, on the current stream.\n\n" + kCpu + m_grouped_operands(op, is_b_transposed) +
           (is_masked ? kMaskedGroups : kContiguousGroups) + (is_fp8(op) ? kRecipe : "") + kCompiledDims +
           (is_fp8(op) ? kDisable : "") + kStream + (is_masked ? kMaskedRules : kContiguousRules) + kRows +
           (is_fp8(op) ? kTransposingB : "") + kRaises;
}

std::string k_grouped_documentation(const std::string& name, Op op, GroupLayout layout) {
    const bool is_blocks = layout == GroupLayout::kBlocks;
    const std::string recipe = is_fp8(op) ? ", recipe=(1, 1, 128)" : "";
    const std::string formula = is_blocks ? "A_group @ B_group.T" : "A_group.T @ B_group";
    return signature(name, "a, b, d, ks, ks_tensor=None, c=None" + recipe + ", compiled_dims=None") +
           "Compute d[group] = " + formula + " + c[group] over the K of each group, from " + kind_of(op) +
           " operands, on the current stream.\n\n" + kCpu + k_grouped_operands(op, layout) + kDividedGroups +
           (is_fp8(op) ? "    recipe: granularity of the scales, None or (1, 1, 128).\n" : "") + kCompiledDims +
           kStream + kDividedRules + kRows + (is_fp8(op) && !is_blocks ? kTransposing : "") + kRaises;
}

}  // namespace deep_gemm
