// What the host knows when an op is called. Immutable once made. Canonical JSON and the key of a problem are made in
// deep_gemm/identity.py from these fields; fields at their default are left out, so that a new field keeps all keys.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/field.hpp"
#include "core/op_kind.hpp"

namespace deep_gemm {

struct Problem {
    static constexpr int64_t kMaxDim = (int64_t(1) << 31) - 1;  // tensor-map coordinates are signed 32-bit numbers
    static constexpr int64_t kMaxSms = 65535;
    static constexpr int64_t kMaxGroups = 65535;
    static constexpr int64_t kDefaultAlignment = 128, kAlignmentUnit = 8;  // the narrowest token tile
    static constexpr int64_t kMaxAlignment = 1 << 16;
    static constexpr int64_t kHeadsUnit = 8, kMaxHeads = 128;  // heads of attention logits
    static constexpr int64_t kMaxNextN = 8;
    static constexpr std::array<int64_t, 3> kHeadSizes{32, 64, 128};  // elements of a head
    static constexpr std::array<int64_t, 2> kPageSizes{32, 64};       // keys of a page
    static constexpr bool is_head_size(int64_t size) { return std::ranges::find(kHeadSizes, size) != kHeadSizes.end(); }
    static constexpr bool is_page_size(int64_t keys) { return std::ranges::find(kPageSizes, keys) != kPageSizes.end(); }
    enum : uint8_t { kCompileM = 1, kCompileN = 2, kCompileK = 4 };

    Op op{};
    int64_t m = 1, n = 1, k = 1;
    int32_t num_sms = 0;
    int32_t num_groups = 0;
    int64_t expected_m = 0;
    int32_t alignment = kDefaultAlignment;
    uint8_t compiled_dims = 0;  // bits kCompileM, kCompileN, kCompileK
    Recipe recipe = Recipe::k1d2d;
    DDtype d_dtype = DDtype::kBf16;
    CMode c_mode = CMode::kNone;
    Major a_major = Major::kK, b_major = Major::kK;
    ScaleLayout scale_layout = ScaleLayout::kMnMajor;
    GroupLayout group_layout = GroupLayout::kJoint;
    bool batch_invariant = false;
    // Whether the kernel says which rows are stored (runtime/signals.hpp). None of kProblemFields: it changes no choice
    // but that of a second tile, so nothing stores or measures it.
    bool has_signals = false;
    int32_t heads = 0, next_n = 1, block_kv = 0;

    bool operator==(const Problem&) const = default;
};

struct ProblemField : Field {
    int64_t (*get)(const Problem&);
    void (*set)(Problem&, int64_t);
    // Of a word: bits of the words that problems of an op kind may have. Of an integer: whether they may have another
    // value than the default. nullptr: any op kind takes any value.
    uint32_t (*legal)(const OpKind&);
};

namespace fields {

template <auto member>
constexpr int64_t get(const Problem& problem) {
    return int64_t(problem.*member);
}
template <auto member>
constexpr void set(Problem& problem, int64_t value) {
    problem.*member = static_cast<std::remove_cvref_t<decltype(problem.*member)>>(value);
}
template <auto is_taken>
constexpr uint32_t taken(const OpKind& kind) {
    return (kind.*is_taken)();
}
template <auto set_of_words>
constexpr uint32_t allowed(const OpKind& kind) {
    return (kind.*set_of_words).bits;
}

template <auto member>
constexpr ProblemField make_size(const char* name, const char* meaning) {
    return {{{name, 1, Problem::kMaxDim, 0, true}, FieldType::kInteger, FieldRole::kSize, {}, meaning},
            get<member>,
            set<member>,
            nullptr};
}
template <auto member>
constexpr ProblemField make_policy(const char* name, FieldType type, int64_t maximum, const char* meaning) {
    return {{{name, 0, maximum, 0, false}, type, FieldRole::kPolicy, {}, meaning}, get<member>, set<member>, nullptr};
}
template <auto member, auto is_taken>
constexpr ProblemField make_group(const IntegerField& range, const char* meaning) {
    return {{range, FieldType::kInteger, FieldRole::kGroup, {}, meaning}, get<member>, set<member>, taken<is_taken>};
}
template <auto member, auto is_taken>
constexpr ProblemField make_count(const IntegerField& range, const char* meaning) {
    return {{range, FieldType::kInteger, FieldRole::kVariant, {}, meaning}, get<member>, set<member>, taken<is_taken>};
}
template <auto member, auto set_of_words, size_t count>
constexpr ProblemField make_word(const char* name, const char* const (&words)[count], const char* meaning) {
    return {{{name, 0, int64_t(count) - 1, 0, false}, FieldType::kWord, FieldRole::kVariant, words, meaning},
            get<member>,
            set<member>,
            allowed<set_of_words>};
}

}  // namespace fields

// Every field of a problem besides its op kind, in the order of constructors and of as_dict().
// clang-format off
inline constexpr auto kProblemFields = std::to_array<ProblemField>({
    fields::make_size<&Problem::m>("m",
        "Rows of A and D; of contiguous groups those of all groups, of masked groups those that each has room for; of "
        "attention logits the tokens of the queries."),
    fields::make_size<&Problem::n>("n", "Rows of B, columns of D; of attention logits the positions of the keys."),
    fields::make_size<&Problem::k>("k",
        "Columns of A and B; of groups of K those of all groups; of attention logits the size of a head."),
    fields::make_policy<&Problem::num_sms>("num_sms", FieldType::kInteger, Problem::kMaxSms,
        "SMs that the kernel may use; 0: all."),
    fields::make_group<&Problem::num_groups, &OpKind::is_grouped>(
        {"num_groups", 0, Problem::kMaxGroups, 0, false}, "Groups of a grouped op."),
    fields::make_group<&Problem::expected_m, &OpKind::expects_rows>(
        {"expected_m", 0, Problem::kMaxDim, 0, false},
        "Rows that a masked group, or one with an end, holds on average; 0: not known."),
    fields::make_group<&Problem::alignment, &OpKind::m_is_shared>(
        {"alignment", Problem::kAlignmentUnit, Problem::kMaxAlignment, Problem::kDefaultAlignment, false},
        "Rows of contiguous groups start at a multiple of it."),
    fields::make_policy<&Problem::compiled_dims>("compiled_dims", FieldType::kDims, 7,
        "Dimensions that are constants of the kernel: a subset of mnk in this order."),
    fields::make_word<&Problem::recipe, &OpKind::recipes>("recipe", kRecipeNames,
        "Scales of FP8 operands: 1d2d (B per 128 x 128 block), 1d1d (both per row and 128 of K) or per_row."),
    fields::make_word<&Problem::d_dtype, &OpKind::d_dtypes>("d_dtype", kDDtypeNames, "Type of D: bf16 or fp32."),
    fields::make_word<&Problem::c_mode, &OpKind::c_modes>("c_mode", kCModeNames,
        "What is added: none, accumulate (C is D), general (any C, alpha, beta), or head_split."),
    fields::make_word<&Problem::a_major, &OpKind::a_majors>("a_major", kMajorNames,
        "Contiguous dimension of A of BF16 ops: k or mn."),
    fields::make_word<&Problem::b_major, &OpKind::b_majors>("b_major", kMajorNames,
        "Contiguous dimension of B of BF16 ops: k or mn."),
    fields::make_word<&Problem::scale_layout, &OpKind::scale_layouts>("scale_layout", kScaleLayoutNames,
        "Scale vectors of FP8 operands: mn_major (aligned for TMA) or any."),
    fields::make_word<&Problem::group_layout, &OpKind::group_layouts>("group_layout", kGroupLayoutNames,
        "Operands of k_grouped_fp8_gemm_contiguous: joint, or blocks of memory (its nt function)."),
    fields::make_policy<&Problem::batch_invariant>("batch_invariant", FieldType::kFlag, 1,
        "Only configs whose results do not depend on m."),
    fields::make_count<&Problem::heads, &OpKind::is_logits>(
        {"heads", 0, Problem::kMaxHeads, 0, false}, "Heads of attention logits: a multiple of 8; 0: no such op."),
    fields::make_count<&Problem::next_n, &OpKind::is_paged>(
        {"next_n", 1, Problem::kMaxNextN, 1, false}, "Tokens of each sequence of paged attention logits."),
    fields::make_count<&Problem::block_kv, &OpKind::is_paged>(
        {"block_kv", 0, Problem::kPageSizes.back(), 0, false},
        "Keys in a page of paged attention logits: 32 or 64; 0: no such op."),
});
// clang-format on

// The field called `name`, or nullptr.
const ProblemField* find_problem_field(std::string_view name);

// Whether groups with ends are said to hold fewer rows than their alignment. Those that fill it, and whose padding
// becomes zero, expect just the alignment, whatever m (hold_expected_m).
inline constexpr bool fills_part(const Problem& problem) {
    return grouping_of(problem.op) == Grouping::kMPsum && problem.expected_m > 0 &&
           problem.expected_m < problem.alignment;
}

// Rows of one group on average, as far as the host knows: all of m where groups do not divide or fill the rows.
inline constexpr int64_t rows_per_group(const Problem& problem) {
    const OpKind& kind = op_kind(problem.op);
    if (fills_part(problem) || (kind.has_room() && problem.expected_m > 0)) return problem.expected_m;
    return kind.m_is_shared() ? (problem.m + problem.num_groups - 1) / problem.num_groups : problem.m;
}

// The masked problem whose tiles serve groups with ends that fill a part of their alignment, with room for all rows in
// each group. Nothing for all other problems, and where no masked product has such operands.
std::optional<Problem> find_masked_twin(const Problem& problem);

// A number of rows within 1..m and rounded up to three significant bits, so that one that changes from call to call
// does not fill the dispatch table.
int64_t round_expected_m(int64_t expected_m, int64_t m);

// The expected rows of a group as problems like this one hold them: rounded, and those that fill the alignment of
// groups with ends all alike.
int64_t hold_expected_m(const Problem& problem, int64_t rows);

// What decides which configs exist for a problem, apart from its sizes, groups and policies: a version, the op kind and
// the variant fields, a byte each.
struct VariantKey {
    static constexpr uint8_t kVersion = 1;  // raise it when a byte changes its meaning
    std::array<uint8_t, 16> bytes{};

    bool operator==(const VariantKey&) const = default;
};

VariantKey variant_key(const Problem& problem);

// What a kernel is compiled for besides its config: equal for all problems that the kernel serves.
Problem kernel_identity(const Problem& problem);

// Check every field of `problem` and the rules between them; throws Error(kProblem) that names the first bad one.
void check_problem(const Problem& problem);
bool is_consistent(const Problem& problem);  // whether the rules between fields hold

// A subset of "mnk" in this order (e.g. "nk") to bits and back; parsing throws Error(kProblem).
uint8_t parse_compiled_dims(std::string_view text);
std::string compiled_dims_text(uint8_t bits);

// `name` as the value of a field of words; throws Error(kProblem).
int64_t parse_word(const ProblemField& field, std::string_view name);
// The value of any field as text: digits, a word, dims, or true and false.
std::string value_text(const ProblemField& field, const Problem& problem);

size_t hash_value(const VariantKey& key);
size_t hash_value(const Problem& problem);
std::string to_string(const Problem& problem);

}  // namespace deep_gemm
