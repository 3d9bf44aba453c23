#include "runtime/documentation.hpp"

#include "runtime/documentation_parts.hpp"

namespace deep_gemm {
namespace {

constexpr const char* kFp8Arguments =
    R"((a, b, d, c=None, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, alpha=1.0, beta=1.0, stream=None)
--

)";

constexpr const char* kBf16Arguments = R"((a, b, d, c=None, compiled_dims=None, *, alpha=1.0, beta=1.0, stream=None)
--

)";

constexpr const char* kHeadArguments =
    R"((a, b, d, head_splits, recipe=None, compiled_dims=None, disable_ue8m0_cast=False)
--

)";

constexpr const char* kFp8Formula = R"(
    product[i, j] = sum over K of A[i, k] * scale_a[i, k // 128] * B[j, k] * scale_b[j // 128, k // 128]

(of A [m, k] and B [n, k], whatever their memory). Partial sums over 128 of K are promoted into FP32; the result is rounded once. CPU
tensors run the reference. Call it once before capturing a CUDA graph: the first call may compile and load a kernel.

)";

constexpr const char* kBf16Formula = R"(
Sums are FP32 and rounded once. CPU tensors run the reference. Call it once before capturing a CUDA graph: the first call may compile and
load a kernel.

)";

constexpr const char* kRecipe =
    R"(    recipe: granularity of the scales: (1, 128, 128), the default; (1, 1, 128): those of B are per row, too, with n in place of
        ceil(n / 128). Without a recipe, 1-D scales [m] and [n] on both sides are per row, all of K.
)";

constexpr const char* kSum = R"(    d: bfloat16 or float32 [m, n], written; shares no memory with A, B and their scales.
    c: [m, n] of the dtype of d, rows contiguous at any pitch, or None; it may be d itself, and else shares no memory with it.
)";

constexpr const char* kFactors =
    R"(    alpha, beta: finite factors of the product and of c; c is not read where beta is 0.
    stream: torch.cuda.Stream or raw handle to launch on instead of the current stream; torch.compile breaks the graph at it.
)";

constexpr const char* kRows = R"(
Rows in memory are contiguous; those of A, B and D start 16-byte aligned, at a pitch that is a multiple of 16 bytes (slices of wider
tensors are right). The stride of a dimension of size 1 is ignored. m = 0 or n = 0: nothing happens. k = 0: the product is 0.
)";

std::string dims(const std::string& rows, const std::string& columns, bool is_transposed) {
    return is_transposed ? "[" + columns + ", " + rows + "]" : "[" + rows + ", " + columns + "]";
}

// "A @ B.T" of nt, "A @ B" of nn and so on.
std::string formula(const MemoryLayout& layout) {
    return std::string(layout.is_a_transposed ? "A.T" : "A") + " @ " + (layout.is_b_transposed ? "B" : "B.T");
}

std::string fp8_pairs(const MemoryLayout& layout) {
    const bool a = layout.is_a_transposed, b = layout.is_b_transposed;
    return "Args:\n    a: pair (A, scale_a): A float8_e4m3fn " + dims("m", "k", a) + ", scale_a float32 " +
           dims("m", "ceil(k / 128)", a) + " of any strides.\n    b: pair (B, scale_b): B float8_e4m3fn " +
           dims("n", "k", b) + ", scale_b float32 " + dims("ceil(n / 128)", "ceil(k / 128)", b) + " of any strides.\n";
}

}  // namespace

std::string fp8_gemm_documentation(const MemoryLayout& layout) {
    return std::string("fp8_gemm_") + layout.suffix + kFp8Arguments + "Compute d = alpha * (" + formula(layout) +
           ") + beta * c from scaled FP8 operands, on the current stream.\n" + kFp8Formula + fp8_pairs(layout) + kSum +
           kRecipe + kCompiledDims + kDisable + kFactors + kRows + kTransposing + kRaises;
}

std::string skip_head_mid_documentation() {
    constexpr const char* kHeads =
        R"(    d: bfloat16 [m, heads * (left + mid + right)], written but for the `mid` columns of each head, which stay as they are.
    head_splits: (left, mid, right), integers >= 0; n = heads * (left + right).
    recipe: granularity of the scales, None or (1, 128, 128).
)";
    return std::string("fp8_gemm_nt_skip_head_mid") + kHeadArguments +
           "Compute d = A @ B.T from scaled FP8 operands, leaving room in the middle of each head of columns, on the "
           "current stream.\n" +
           kFp8Formula + fp8_pairs(kMemoryLayouts[0]) + kHeads + kCompiledDims + kDisable + kRows + kTransposing +
           kRaises;
}

std::string bf16_gemm_documentation(const MemoryLayout& layout) {
    return std::string("bf16_gemm_") + layout.suffix + kBf16Arguments + "Compute d = alpha * (" + formula(layout) +
           ") + beta * c from BF16 operands, on the current stream.\n" + kBf16Formula + "Args:\n    a: A bfloat16 " +
           dims("m", "k", layout.is_a_transposed) + ".\n    b: B bfloat16 " + dims("n", "k", layout.is_b_transposed) +
           ".\n    Both may be contiguous along either dimension; the kernels read all of them as they are.\n" + kSum +
           kCompiledDims + kFactors + kRows + kRaises;
}

}  // namespace deep_gemm
