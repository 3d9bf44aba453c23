#include "runtime/kernel_checks.hpp"

#include <string>
#include <tuple>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/second_tile.hpp"

namespace deep_gemm {
namespace {

// The kernel's variant with what the operands ask for in its place.
Problem asked_variant(const LoadedKernel& kernel, const Problem& given, const Layouts& layouts, bool has_c) {
    Problem asked = kernel.problem;
    asked.op = given.op, asked.recipe = given.recipe, asked.d_dtype = given.d_dtype,
    asked.group_layout = given.group_layout;
    asked.a_major = layouts.a, asked.b_major = layouts.b;
    asked.heads = given.heads, asked.next_n = given.next_n, asked.block_kv = given.block_kv;
    const bool takes_any_c = kernel.problem.c_mode == CMode::kGeneral && has_c;
    if (!takes_any_c) asked.c_mode = given.c_mode;
    if (kernel.problem.scale_layout != ScaleLayout::kAny) asked.scale_layout = given.scale_layout;
    return asked;
}

}  // namespace

void check_kernel_device(const LoadedKernel& kernel, const TensorView& view) {
    if (view.device_kind == DeviceKind::kCuda && view.ordinal == kernel.gpu->ordinal) return;
    throw Error(ErrorKind::kDevice, "a: this kernel is loaded on cuda:" + std::to_string(kernel.gpu->ordinal) +
                                        "; pass tensors of that device.");
}

void check_compiled_dims(const Problem& problem, const Sizes& sizes) {
    const std::tuple<uint8_t, const char*, int64_t, int64_t> dims[] = {{Problem::kCompileM, "m", problem.m, sizes.m},
                                                                       {Problem::kCompileN, "n", problem.n, sizes.n},
                                                                       {Problem::kCompileK, "k", problem.k, sizes.k}};
    for (const auto& [bit, name, compiled, given] : dims)
        if (problem.compiled_dims & bit && compiled != given)
            throw Error(ErrorKind::kArgument, std::string(name) + " = " + std::to_string(given) +
                                                  ": this kernel is compiled for " + std::to_string(compiled) +
                                                  "; pass such operands or compile another.");
}

void check_variant(const LoadedKernel& kernel, const Problem& given, const Layouts& layouts, bool has_c) {
    const Problem asked = asked_variant(kernel, given, layouts, has_c);
    if (is_logits(given) && given.k != kernel.problem.k)
        throw Error(ErrorKind::kArgument, "head_dim = " + std::to_string(given.k) + ": this kernel was made for " +
                                              std::to_string(kernel.problem.k) +
                                              "; pass such operands or compile another.");
    if (given.has_signals != kernel.problem.has_signals)
        throw Error(ErrorKind::kArgument, std::string("signal: this kernel was made for calls ") +
                                              (given.has_signals ? "without" : "with") +
                                              " signals; pass it accordingly or compile another.");
    if (asked == kernel.problem) return;
    for (const ProblemField& field : kProblemFields) {
        if (field.role != FieldRole::kVariant || field.get(asked) == field.get(kernel.problem)) continue;
        throw Error(ErrorKind::kArgument, std::string(field.name) + " = " + value_text(field, asked) +
                                              ": this kernel was made for " + value_text(field, kernel.problem) +
                                              "; pass such operands or compile another.");
    }
}

void check_kernel_alignment(const LoadedKernel& kernel, const Problem& given) {
    for (const Config* config : {&kernel.config, kernel.second ? &*kernel.second : nullptr}) {
        if (config == nullptr || fits_alignment(group_alignment(given), *config)) continue;
        const std::string rows = std::to_string(config->block_m);
        throw Error(ErrorKind::kArgument, "config = " + to_string(*config) + ": its tiles of block_m = " + rows +
                                              " rows do not divide get_mk_alignment_for_contiguous_layout() = " +
                                              std::to_string(given.alignment) + "; set a multiple of " + rows +
                                              " or compile a smaller tile.");
    }
    if (!kernel.second) return;
    if (const std::string reason = second_tile_reason(given, kernel.config, *kernel.second); !reason.empty())
        throw Error(ErrorKind::kArgument, reason);
}

void check_kernel_sms(const LoadedKernel& kernel, int num_sms) {
    if (num_sms != 0 && kernel.config.split_k > 1)
        throw Error(ErrorKind::kArgument,
                    "num_sms = " + std::to_string(num_sms) + ": a config with split_k takes all SMs; pass 0.");
}

}  // namespace deep_gemm
