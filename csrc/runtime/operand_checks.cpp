#include "runtime/operand_checks.hpp"

#include <string>
#include <vector>

#include "runtime/operand_text.hpp"

namespace deep_gemm {
namespace {

std::vector<std::string> names_of(std::span<const Dim> dims) {
    std::vector<std::string> names;
    for (const Dim& dim : dims) names.emplace_back(dim.name);
    return names;
}

bool is_size_of(int64_t size, const Dim& dim) { return dim.size < 0 || dim.size == size; }

// Whether an input would have the right sizes with its last two dims exchanged.
bool is_exchanged(const Operand& operand, std::span<const Dim> dims) {
    const TensorView& view = operand.view;
    if (dims.size() < 2 || is_output(operand)) return false;
    if (dims.size() == 3 && !is_size_of(view.shape[0], dims[0])) return false;
    const size_t row = dims.size() - 2;
    return is_size_of(view.shape[row + 1], dims[row]) && is_size_of(view.shape[row], dims[row + 1]);
}

}  // namespace

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

void fail_rank(const Operand& operand, std::span<const Dim> dims) {
    fail_shape(std::string(operand.name) + ".ndim = " + std::to_string(operand.view.rank) + ": must be " +
               (dims.size() == 2 ? "a matrix " : "") + dims_text(operand, names_of(dims)) + "; reshape it.");
}

void fail_dims(const Operand& operand, std::span<const Dim> dims) {
    const std::string name = operand.name;
    std::vector<std::string> sizes;
    for (const Dim& dim : dims) sizes.push_back(dim.size < 0 ? dim.name : std::to_string(dim.size));
    const std::string remedy = is_exchanged(operand, dims) ? "it is transposed: pass " + name +
                                                                 ".mT, or call the function for this layout (_nt, _nn, "
                                                                 "_tn, _tt)."
                                                           : "pass a tensor of this shape.";
    fail_shape(name + ".shape = " + shape_text(operand) + ": must be " + dims_text(operand, names_of(dims)) + " = " +
               dims_text(operand, sizes) + "; " + remedy);
}

void fail_limit(const char* dim, int64_t value) {
    fail_shape(std::string(dim) + " = " + std::to_string(value) +
               ": sizes must be below 2^31; split the product along " + dim + ".");
}

void fail_value(const std::string& message) { throw Error(ErrorKind::kArgument, message); }

std::string entry_text(const char* name, int64_t index, int64_t value) {
    return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

void check_values_within(const Operand& groups, int64_t minimum, int64_t maximum, const std::string& rule) {
    const int32_t* values = values_of(groups);
    for (int64_t i = 0; i < groups.view.shape[0]; ++i)
        if (values[i] < minimum || values[i] > maximum)
            fail_value(entry_text(groups.name, i, values[i]) + ": must be " + rule);
}

void check_ends(const Operand& groups, int64_t alignment, int64_t size, const char* dim) {
    const int32_t* ends = values_of(groups);
    const std::string limit = dim + (" = " + std::to_string(size));
    check_values_within(groups, 0, size, "an end within 0.." + limit + "; correct it.");
    for (int64_t i = 1, before = ends[0]; i < groups.view.shape[0]; before = ends[i++]) {
        const int64_t start = ceil_div(before, alignment) * alignment;
        if (ends[i] == before || ends[i] >= start) continue;
        fail_value(entry_text(groups.name, i, ends[i]) + ": must be at least " + std::to_string(start) +
                   ", where the group starts (the end before it, rounded up to a multiple of " +
                   std::to_string(alignment) + "), or that end for an empty group; correct it.");
    }
}

}  // namespace deep_gemm
