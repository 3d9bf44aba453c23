#include "runtime/operand_checks.hpp"

#include <string>
#include <vector>

#include "runtime/operand_text.hpp"

namespace deep_gemm {

void fail_device(const Operand& operand, const Operand& first) {
    if (operand.view.device_kind == DeviceKind::kOther)
        throw Error(ErrorKind::kDevice,
                    std::string(operand.name) +
                        ": on a device that is neither CUDA nor CPU; move all operands to one CUDA device.");
    throw Error(ErrorKind::kDevice, std::string(operand.name) + " is on " + device_text(operand.view) + " and " +
                                        first.name + " on " + device_text(first.view) +
                                        ": all operands must be on one device; move them with .to(...).");
}

void fail_dtype(const Operand& operand, const std::string& rule) {
    throw Error(ErrorKind::kDtype, std::string(operand.name) + ".dtype = " + dtype_text(operand) + ": " + rule);
}

void fail_dtype(const Operand& operand, Dtype wanted, const char* remedy) {
    fail_dtype(operand, std::string("must be ") + dtype_name(wanted) + "; " + remedy);
}

void fail_shape(const std::string& message) { throw Error(ErrorKind::kShape, message); }

void fail_rank(const Operand& operand, std::initializer_list<const char*> dims) {
    fail_shape(std::string(operand.name) + ".ndim = " + std::to_string(operand.view.rank) + ": must be " +
               (dims.size() == 2 ? "a matrix " : "") + dims_text(operand, {dims.begin(), dims.end()}) +
               "; reshape it.");
}

void fail_dims(const Operand& operand, std::initializer_list<Dim> dims) {
    std::vector<std::string> names, sizes;
    for (const Dim& dim : dims) names.push_back(dim.name), sizes.push_back(std::to_string(dim.size));
    fail_shape(std::string(operand.name) + ".shape = " + shape_text(operand) + ": must be " +
               dims_text(operand, names) + " = " + dims_text(operand, sizes) + "; reshape or slice it.");
}

void fail_limit(const char* dim, int64_t value) {
    fail_shape(std::string(dim) + " = " + std::to_string(value) +
               ": sizes must be below 2^31; split the product along " + dim + ".");
}

void check_input_dtypes(const GemmOperands& operands, Op op) {
    constexpr const char* kQuantise = "quantise it, e.g. with per_token_cast_to_fp8 or per_block_cast_to_fp8.";
    constexpr const char* kScales = "scales stay FP32 on SM90.";
    for (const Operand* operand : {&operands.a, &operands.b})
        check_dtype(*operand, is_fp8(op) ? Dtype::kFloat8E4M3 : Dtype::kBfloat16,
                    is_fp8(op) ? kQuantise : "convert it with .bfloat16().");
    for (const Operand* scales : {&operands.scale_a, &operands.scale_b})
        if (scales->is_present()) check_dtype(*scales, Dtype::kFloat32, kScales);
}

}  // namespace deep_gemm
