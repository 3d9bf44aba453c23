// The rules that a single operand keeps, whatever the op. Every failure is a typed error that says value, rule and
// remedy, in the words of the caller: a transposed operand is named with the dims and strides that it has there.
// Operands are matrices or, of grouped ops, matrices of several groups: then the first dim counts groups, and the last
// two are the matrix.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

inline constexpr int64_t kPitchAlignment = 16;  // TMA: addresses and pitches are multiples of 16 bytes
inline constexpr int64_t kScaleGranularity = 128;

// A dim of the op: its name and what it must be.
struct Dim {
    const char* name;
    int64_t size;
};

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What the checks below throw, out of the way of operands that pass.
[[noreturn]] void fail_device(const Operand& operand, const Operand& first);
[[noreturn]] void fail_dtype(const Operand& operand, const std::string& rule);
[[noreturn]] void fail_dtype(const Operand& operand, Dtype wanted, const char* remedy);
[[noreturn]] void fail_shape(const std::string& message);
[[noreturn]] void fail_rank(const Operand& operand, std::initializer_list<const char*> dims);
[[noreturn]] void fail_dims(const Operand& operand, std::initializer_list<Dim> dims);
[[noreturn]] void fail_limit(const char* dim, int64_t value);
[[noreturn]] void fail_layout(const std::string& message);

// Throws Error(kDevice) unless `operand` is on the device of `first`.
inline void check_device(const Operand& operand, const Operand& first) {
    const TensorView &view = operand.view, &other = first.view;
    const bool is_same = view.device_kind == other.device_kind && view.ordinal == other.ordinal;
    if (!is_same || view.device_kind == DeviceKind::kOther) fail_device(operand, first);
}

// Throw Error(kDtype).
inline void check_dtype(const Operand& operand, Dtype wanted, const char* remedy) {
    if (operand.view.dtype != wanted) fail_dtype(operand, wanted, remedy);
}
void check_input_dtypes(const GemmOperands& operands, Op op);

// Throw Error(kShape). The dims are the op's, in its orientation.
inline void check_rank(const Operand& operand, std::initializer_list<const char*> dims) {
    if (operand.view.rank != int(dims.size())) fail_rank(operand, dims);
}
inline void check_shape(const Operand& operand, std::initializer_list<Dim> dims) {
    const int64_t* size = operand.view.shape.data();
    for (const Dim& dim : dims)
        if (*size++ != dim.size) fail_dims(operand, dims);
}
inline void check_limit(const char* dim, int64_t value) {
    if (value > Problem::kMaxDim) fail_limit(dim, value);
}

// Throw Error(kLayout).
void check_contiguous_rows(const Operand& operand, const char* column_dim);
void check_alignment(const Operand& operand, uint64_t alignment);
void check_no_overlap(const Operand& d, const Operand& input);

// Whether TMA can read the rows: contiguous, not overlapping, at a good pitch, groups of them likewise. Throws
// Error(kLayout) where not.
void check_rows(const Operand& operand, const char* column_dim);

// The major in which TMA can read `operand`. Where it can in neither, complain of the one that was probably meant.
Major check_major(const Operand& operand, const char* row_dim, const char* column_dim, Major preferred);

// How C [m, n] goes with D; not given: it adds nothing. `is_plain_sum`: alpha = beta = 1.
CMode check_c(const Operand& c, const Operand& d, bool is_plain_sum);

// Whether TMA can read vectors of scales along the rows of [rows, steps].
bool is_mn_major(const TensorView& scales);

// Bytes from one row of a matrix to the next, as a tensor map wants it: the stride of a single row counts for nothing.
int64_t row_pitch_bytes(const TensorView& view);

// Bytes from one group to the next; of a single one, a stride that any tensor map takes.
int64_t group_pitch_bytes(const TensorView& view);

// Whether C is D: the same elements at the same addresses.
bool is_same_memory(const TensorView& c, const TensorView& d);

inline bool is_meta(const TensorView& view) { return view.device_kind == DeviceKind::kMeta; }

}  // namespace deep_gemm
