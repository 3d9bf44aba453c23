// The rules that a single operand keeps, whatever the op. Every failure is a typed error that says value, rule and
// remedy, in the caller's terms: a transposed operand is described with the dims and strides that the caller gave it.
// Operands are matrices or, in grouped ops, one matrix for each group: then the first dim counts groups, and the last
// two are the matrix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

inline constexpr int64_t kPitchAlignment = 16;  // TMA: addresses and pitches are multiples of 16 bytes
inline constexpr int64_t kScaleGranularity = 128;

// A dim of an operand: its name and the size that it must have, below 0 where no other operand says it.
struct Dim {
    const char* name;
    int64_t size;
};

// What the checks below throw; out of line, so that operands that pass pay nothing for it.
[[noreturn]] void fail_device(const Operand& operand, const Operand& first);
[[noreturn]] void fail_dtype(const Operand& operand, const std::string& rule);
[[noreturn]] void fail_dtype(const Operand& operand, Dtype wanted, const char* remedy);
[[noreturn]] void fail_shape(const std::string& message);
[[noreturn]] void fail_rank(const Operand& operand, std::span<const Dim> dims);
[[noreturn]] void fail_dims(const Operand& operand, std::span<const Dim> dims);
[[noreturn]] void fail_limit(const char* dim, int64_t value);
[[noreturn]] void fail_layout(const std::string& message);
[[noreturn]] void fail_value(const std::string& message);

// Throws Error(kDevice) unless `operand` is on the device of `first`.
inline void check_device(const Operand& operand, const Operand& first) {
    const TensorView &view = operand.view, &other = first.view;
    const bool is_same = view.device_kind == other.device_kind && view.ordinal == other.ordinal;
    if (!is_same || view.device_kind == DeviceKind::kOther) fail_device(operand, first);
}

// Throws Error(kDtype).
inline void check_dtype(const Operand& operand, Dtype wanted, const char* remedy) {
    if (operand.view.dtype != wanted) fail_dtype(operand, wanted, remedy);
}

// Throws Error(kShape).
inline void check_limit(const char* dim, int64_t value) {
    if (value > Problem::kMaxDim) fail_limit(dim, value);
}

// Throw Error(kLayout).
void check_contiguous(const Operand& operand);
void check_groups_apart(const Operand& d);  // the matrices of the groups do not overlap
void check_contiguous_rows(const Operand& operand, const char* column_dim);
void check_alignment(const Operand& operand, uint64_t alignment);
void check_no_overlap(const Operand& output, const Operand& other);

// Whether TMA can read the rows: contiguous, not overlapping, at a pitch that TMA takes, and groups of rows likewise.
// Throws Error(kLayout) where it cannot.
void check_rows(const Operand& operand, const char* column_dim);

// The major in which TMA can read `operand`; `preferred` where it can in both. Where it can in neither, the error is
// about the one that was probably meant.
Major check_major(const Operand& operand, const char* row_dim, const char* column_dim, Major preferred);

// How D takes C [m, n]; absent: it adds nothing. `is_plain_sum`: alpha = beta = 1.
CMode check_c(const Operand& c, const Operand& d, bool is_plain_sum);

// Whether TMA can read vectors of scales along the rows of [rows, steps].
bool is_mn_major(const TensorView& scales);

// Bytes from one row of a matrix to the next, as a tensor map wants it: the stride of a single row is ignored.
int64_t row_pitch_bytes(const TensorView& view);

// Bytes from one group to the next; for a single group, a stride that every tensor map takes.
int64_t group_pitch_bytes(const TensorView& view);

// Whether C is D: the same elements at the same addresses.
bool is_same_memory(const TensorView& c, const TensorView& d);

// The entries of `groups`, an int32 tensor on the CPU, and checks of them. Throw Error(kArgument).
inline const int32_t* values_of(const Operand& groups) { return reinterpret_cast<const int32_t*>(groups.view.address); }
std::string entry_text(const char* name, int64_t index, int64_t value);  // "name[index] = value"
void check_values_within(const Operand& groups, int64_t minimum, int64_t maximum, const std::string& rule);
// Ends of groups along a dim of `size` elements, each of which starts at the end before, rounded up to the alignment.
void check_ends(const Operand& groups, int64_t alignment, int64_t size, const char* dim);

// Whether the op writes into the operand: advice to copy it would lose the result.
inline bool is_output(const Operand& operand) {
    const std::string_view name = operand.name;
    return name == "d" || name == "signal";
}

inline bool is_meta(const TensorView& view) { return view.device_kind == DeviceKind::kMeta; }

}  // namespace deep_gemm
