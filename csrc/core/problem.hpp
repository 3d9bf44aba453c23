// What the host knows when an op is called. Immutable once made; its key is frozen: sha256 of the canonical JSON
// {"fields":{...},"op":"..."} in which fields at their default are left out, so that a new field keeps all old keys.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "core/sha256.hpp"

namespace deep_gemm {

// Dense products, then grouped ones: the rows of A divided among the matrices of B (contiguous, or masked: with room
// for more rows in each group), and K divided among the matrices of D. Each for FP8, then for BF16.
enum class Op : uint8_t {
    kFp8Gemm,
    kBf16Gemm,
    kMGroupedFp8Contiguous,
    kMGroupedBf16Contiguous,
    kMGroupedFp8Masked,
    kMGroupedBf16Masked,
    kKGroupedFp8Contiguous,
    kKGroupedBf16Contiguous
};
inline constexpr Op kOps[] = {
    Op::kFp8Gemm,           Op::kBf16Gemm,           Op::kMGroupedFp8Contiguous, Op::kMGroupedBf16Contiguous,
    Op::kMGroupedFp8Masked, Op::kMGroupedBf16Masked, Op::kKGroupedFp8Contiguous, Op::kKGroupedBf16Contiguous};
inline constexpr size_t kNumOps = std::size(kOps);

// What the groups of an op divide.
enum class Grouping : uint8_t { kNone, kMContiguous, kMMasked, kKContiguous };
inline constexpr Grouping grouping_of(Op op) { return Grouping(uint8_t(op) / 2); }
inline constexpr bool is_fp8(Op op) { return uint8_t(op) % 2 == 0; }
inline constexpr bool is_grouped(Op op) { return grouping_of(op) != Grouping::kNone; }

// How scales cover FP8 operands: A per row and 128 of K with B per 128 x 128 block; both per row and 128 of K; both per
// row.
enum class Recipe : uint8_t { k1d2d, k1d1d, kPerRow };
enum class DDtype : uint8_t { kBf16, kFp32 };
// What is added to D: nothing; D itself, unscaled; alpha, beta and any C; nothing, with the columns of D spread around
// a middle part.
enum class CMode : uint8_t { kNone, kAccumulate, kGeneral, kHeadSplit };
enum class Major : uint8_t { kK, kMn };  // the dimension of an operand that is contiguous in memory
// Where a tensor of scale vectors is contiguous: along its rows, aligned so that TMA loads it, or anyhow.
enum class ScaleLayout : uint8_t { kMnMajor, kAny };
// Where the operands of the groups of K lie: side by side in one matrix, or each in a block of contiguous memory of its
// own.
enum class GroupLayout : uint8_t { kJoint, kBlocks };

std::string_view op_name(Op op);
Op parse_op(std::string_view name);  // throws Error(kProblem)

// A description of one integer field; `is_required` fields have no default and always enter the key.
struct IntegerField {
    const char* name;
    int64_t minimum, maximum, default_value;
    bool is_required;
};

// A description of one enumerated field of a problem: a string in JSON and Python, its position in `names` in C++; 0 is
// the default.
struct Problem;
struct EnumField {
    const char* name;
    std::span<const char* const> names;
    uint8_t (*get)(const Problem&);
    void (*set)(Problem&, uint8_t);
};

struct Problem {
    static constexpr int64_t kMaxDim = (int64_t(1) << 31) - 1;  // tensor-map coordinates are signed 32-bit numbers
    static constexpr int64_t kMaxSms = 65535;
    static constexpr int64_t kMaxGroups = 65535;
    static constexpr int64_t kDefaultAlignment = 128, kAlignmentUnit = 8;  // the narrowest token tile
    static constexpr int64_t kMaxAlignment = 1 << 16;
    enum : uint8_t { kCompileM = 1, kCompileN = 2, kCompileK = 4 };

    Op op = Op::kFp8Gemm;
    // Rows of A: of all groups together (m-grouped contiguous), or the most that a group has room for (masked). K of
    // all groups together where they divide it.
    int64_t m = 1, n = 1, k = 1;
    int32_t num_sms = 0;     // SMs to use; 0 = all of the device
    int32_t num_groups = 0;  // grouped ops: at least 1
    int64_t expected_m = 0;  // masked only: rows of a group on average, a hint; 0 = not known
    int32_t alignment =
        kDefaultAlignment;          // m-grouped contiguous only: the rows of every group start at a multiple of it
    uint8_t compiled_dims = 0;      // dims that are constants of the kernel: bits kCompileM, kCompileN, kCompileK
    Recipe recipe = Recipe::k1d2d;  // FP8 only
    DDtype d_dtype = DDtype::kBf16;
    CMode c_mode = CMode::kNone;
    Major a_major = Major::kK, b_major = Major::kK;    // BF16 only
    ScaleLayout scale_layout = ScaleLayout::kMnMajor;  // FP8 only
    GroupLayout group_layout = GroupLayout::kJoint;    // k_grouped_fp8_gemm_contiguous only
    bool batch_invariant = false;                      // results of a row must not depend on m

    bool operator==(const Problem&) const = default;
};

// m, n, k, num_sms, num_groups, expected_m, alignment in the order of Problem.
extern const std::array<IntegerField, 7> kProblemFields;

// recipe, d_dtype, c_mode, a_major, b_major, scale_layout, group_layout.
extern const std::array<EnumField, 7> kProblemEnums;

// The value of integer field `index` of kProblemFields, and setting it.
int64_t get_field(const Problem& problem, size_t index);
void set_field(Problem& problem, size_t index, int64_t value);

// Rows of one group on average, as far as the host knows: all of m for dense products and groups of K.
inline constexpr int64_t rows_per_group(const Problem& problem) {
    switch (grouping_of(problem.op)) {
        case Grouping::kMContiguous: return (problem.m + problem.num_groups - 1) / problem.num_groups;
        case Grouping::kMMasked: return problem.expected_m > 0 ? problem.expected_m : problem.m;
        default: return problem.m;
    }
}

// Number of values of variant_code.
inline constexpr size_t kNumVariants = 4096;

// What decides which kernels and configs exist for a problem, apart from its sizes and SMs, as one small number.
inline constexpr uint32_t variant_code(const Problem& problem) {
    return uint32_t(problem.op) | uint32_t(problem.recipe) << 3 | uint32_t(problem.d_dtype) << 5 |
           uint32_t(problem.c_mode) << 6 | uint32_t(problem.a_major) << 8 | uint32_t(problem.b_major) << 9 |
           uint32_t(problem.scale_layout) << 10 | uint32_t(problem.group_layout) << 11;
}

// `name` as the value of an enumerated field, and back; parsing throws Error(kProblem).
uint8_t parse_enum(const EnumField& field, std::string_view name);
inline const char* enum_name(const EnumField& field, const Problem& problem) { return field.names[field.get(problem)]; }

// Check every field of `problem` and the rules between them; throws Error(kProblem) that names the first bad one.
void check_problem(const Problem& problem);
bool is_consistent(const Problem& problem);  // whether the rules between fields hold

// A subset of "mnk" in this order (e.g. "nk") to bits and back; throws Error(kProblem).
uint8_t parse_compiled_dims(std::string_view text);
std::string compiled_dims_text(uint8_t bits);

std::string to_json(const Problem& problem);
Problem problem_from_json(std::string_view text);  // throws Error(kProblem)
Sha256Digest problem_digest(const Problem& problem);
size_t hash_value(const Problem& problem);
std::string to_string(const Problem& problem);

// `value` if it is an integer within the field's range; throws std::invalid_argument with the field, its value and
// rule.
int64_t check_integer_field(const IntegerField& field, const JsonValue& value);
void check_integer_range(const IntegerField& field, int64_t value);

}  // namespace deep_gemm
