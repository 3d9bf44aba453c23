#include "runtime/expression.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/python.hpp"

namespace deep_gemm {
namespace {

constexpr DimOrder kAsIs = {0, 1, 2}, kMiddleFirst = {1, 0, 2}, kLastTwoExchanged = {0, 2, 1}, kFirstLast = {1, 2, 0};

constexpr Expression kExpressions[] = {
    {"bhr,hdr->bhd", "batched_bf16_gemm", kMiddleFirst, kAsIs, kMiddleFirst},
    {"bhd,hdr->bhr", "batched_bf16_gemm", kMiddleFirst, kLastTwoExchanged, kMiddleFirst},
    {"bhd,bhr->hdr", "batched_bf16_gemm", kFirstLast, kFirstLast, kAsIs},
    {"bmk,bnk->mn", "summed_bf16_gemm", kAsIs, kAsIs, kAsIs},
    {"bhr,hdr->bhd", "batched_fp8_gemm", kMiddleFirst, kAsIs, kMiddleFirst},
    {"bhd,hdr->bhr", "batched_fp8_gemm", kMiddleFirst, kLastTwoExchanged, kMiddleFirst},
    {"bhd,bhr->hdr", "batched_fp8_gemm", kFirstLast, kFirstLast, kAsIs},
};

constexpr size_t kNumExpressions = std::size(kExpressions);

// The op kinds of the rows, looked up once.
const std::array<Op, kNumExpressions>& ops_of_rows() {
    static const std::array<Op, kNumExpressions> ops = [] {
        std::array<Op, kNumExpressions> found{};
        for (size_t i = 0; i < kNumExpressions; ++i) found[i] = parse_op(kExpressions[i].op);
        return found;
    }();
    return ops;
}

bool is_text(const char* known, const char* given) {
    for (; *given != '\0'; ++given) {
        if (*given == ' ') continue;
        if (*known != *given) return false;
        ++known;
    }
    return *known == '\0';
}

[[noreturn]] void fail(PyObject* text, bool is_fp8) {
    std::string known;
    for (size_t i = 0; i < kNumExpressions; ++i)
        if (deep_gemm::is_fp8(ops_of_rows()[i]) == is_fp8)
            known += (known.empty() ? "'" : ", '") + std::string(kExpressions[i].text) + "'";
    throw Error(ErrorKind::kArgument,
                "expr = " + short_repr(text) + ": must be one of " + known + "; write the product as one of them.");
}

void permute(Operand& operand, const DimOrder& order) {
    if (!operand.is_present() || order == kAsIs) return;
    operand.order = &order;
    if (operand.view.rank != int(order.size())) return;
    const TensorView seen = operand.view;
    for (size_t i = 0; i < order.size(); ++i)
        operand.view.shape[i] = seen.shape[order[i]], operand.view.strides[i] = seen.strides[order[i]];
}

}  // namespace

const Expression& parse_expression(PyObject* text, bool is_fp8) {
    const char* given = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : "";
    if (given == nullptr) PyErr_Clear(), given = "";  // a lone surrogate, which no expression holds
    for (size_t i = 0; i < kNumExpressions; ++i)
        if (deep_gemm::is_fp8(ops_of_rows()[i]) == is_fp8 && is_text(kExpressions[i].text, given))
            return kExpressions[i];
    fail(text, is_fp8);
}

void arrange(const Expression& expression, Call& call) {
    call.op = ops_of_rows()[size_t(&expression - kExpressions)];
    for (Operand* operand : {&call.a, &call.scale_a}) permute(*operand, expression.a);
    for (Operand* operand : {&call.b, &call.scale_b}) permute(*operand, expression.b);
    for (Operand* operand : {&call.d, &call.c}) permute(*operand, expression.d);
}

}  // namespace deep_gemm
