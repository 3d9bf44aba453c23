// The op kinds, one row each. What differs between them is a property of the row, so that code asks for the property
// and a new op kind is a new row.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>

namespace deep_gemm {

// An op kind: the number of its row in kOpKinds. It is a byte in a VariantKey.
enum class Op : uint8_t {};

// What the groups of an op divide: nothing; the rows of A, one group after the other; nothing of A, because each group
// has room for m rows; K. kMPsum and kKPsum are kMContiguous and kKContiguous with another description of the groups.
// In kBatched and kSummed groups are whole products: each has a D of its own, or all add up to one D.
enum class Grouping : uint8_t { kNone, kMContiguous, kMMasked, kKContiguous, kMPsum, kKPsum, kBatched, kSummed };
// How scales cover FP8 operands: A per row and 128 of K with B per 128 x 128 block; both per row and 128 of K; both per
// row.
enum class Recipe : uint8_t { k1d2d, k1d1d, kPerRow };
enum class DDtype : uint8_t { kBf16, kFp32 };
// What is added to D: nothing; D itself, unscaled; alpha, beta and any C; nothing, with the columns of D spread around
// a middle part.
enum class CMode : uint8_t { kNone, kAccumulate, kGeneral, kHeadSplit };
enum class Major : uint8_t { kK, kMn };  // the dimension of an operand that is contiguous in memory
// Scale vectors: contiguous along their rows and aligned so that TMA loads them, or at any strides.
enum class ScaleLayout : uint8_t { kMnMajor, kAny };
// Operands of the groups of K: side by side in one matrix, or each in a contiguous block of memory.
enum class GroupLayout : uint8_t { kJoint, kBlocks };
// What an op computes: a product of matrices; attention logits, of keys that lie in one matrix or in pages.
enum class Form : uint8_t { kProduct, kLogits, kPagedLogits };
// Knobs of a config that an op kind may leave at their default only.
enum class Knob : uint8_t { kClusters, kSplitK, kSwapAb };

inline constexpr const char* kGroupingNames[] = {"dense",  "contiguous", "masked",  "k_grouped",
                                                 "m_psum", "k_psum",     "batched", "summed"};
inline constexpr const char* kRecipeNames[] = {"1d2d", "1d1d", "per_row"};
inline constexpr const char* kDDtypeNames[] = {"bf16", "fp32"};
inline constexpr const char* kCModeNames[] = {"none", "accumulate", "general", "head_split"};
inline constexpr const char* kMajorNames[] = {"k", "mn"};
inline constexpr const char* kScaleLayoutNames[] = {"mn_major", "any"};
inline constexpr const char* kGroupLayoutNames[] = {"joint", "blocks"};
inline constexpr const char* kKnobNames[] = {"clusters", "split_k", "swap_ab"};

// A set of words of one enumeration.
template <typename Word>
struct WordSet {
    uint32_t bits = 0;

    constexpr WordSet(std::initializer_list<Word> words) {
        for (Word word : words) bits |= uint32_t(1) << uint8_t(word);
    }
    constexpr bool has(Word word) const { return bits >> uint8_t(word) & 1; }
};

struct OpKind {
    const char* name;
    const char* family;  // op kinds of a family and grouping share their host functions (runtime/family.hpp)
    const char* kernel;  // of the JIT: the header in deep_gemm/include/deep_gemm, and in CamelCase its class
    Grouping grouping;
    bool is_fp8;  // FP8 operands with scales; else BF16
    // The words that a problem of this kind may have; those of FP8's scales are at their default for BF16.
    WordSet<Recipe> recipes;
    WordSet<DDtype> d_dtypes;
    WordSet<CMode> c_modes;
    WordSet<Major> a_majors, b_majors;
    WordSet<ScaleLayout> scale_layouts;
    WordSet<GroupLayout> group_layouts;
    WordSet<Knob> knobs;
    // The op kind that differs from this one only in how the caller describes the groups: what was recorded of it
    // serves this one as long as nothing was recorded of this one. nullptr: there is none.
    const char* sibling = nullptr;
    Form form = Form::kProduct;

    constexpr bool is_product() const { return form == Form::kProduct; }
    constexpr bool is_logits() const { return form != Form::kProduct; }
    constexpr bool is_paged() const { return form == Form::kPagedLogits; }
    constexpr bool is_grouped() const { return grouping != Grouping::kNone; }
    // Groups lie one after the other among the m rows of A, each padded to the alignment.
    constexpr bool m_is_shared() const { return grouping == Grouping::kMContiguous || grouping == Grouping::kMPsum; }
    // Every group has room for m rows, of which it fills some.
    constexpr bool has_room() const { return grouping == Grouping::kMMasked; }
    // How many rows a group holds stands in device memory; the caller may say how many are expected.
    constexpr bool expects_rows() const { return has_room() || grouping == Grouping::kMPsum; }
    // Groups lie one after the other along K, and each has a D of its own.
    constexpr bool k_is_divided() const { return grouping == Grouping::kKContiguous || grouping == Grouping::kKPsum; }
    // The caller says where each group ends, and a group starts at the next multiple of the alignment (psum layout).
    constexpr bool has_ends() const { return grouping == Grouping::kMPsum || grouping == Grouping::kKPsum; }
    // Groups are products of m rows each, with a D of their own.
    constexpr bool is_batched() const { return grouping == Grouping::kBatched; }
    // The products of all groups add up to one D.
    constexpr bool is_summed() const { return grouping == Grouping::kSummed; }
    // Where groups begin or end is an operand.
    constexpr bool reads_groups() const { return is_grouped() && !is_batched() && !is_summed(); }
};

namespace words {

inline constexpr WordSet<Recipe> kNoScales = {Recipe::k1d2d}, kPer128 = {Recipe::k1d2d, Recipe::k1d1d},
                                 kVectors = {Recipe::k1d1d},
                                 kAllRecipes = {Recipe::k1d2d, Recipe::k1d1d, Recipe::kPerRow};
inline constexpr WordSet<DDtype> kAnyD = {DDtype::kBf16, DDtype::kFp32}, kFp32D = {DDtype::kFp32};
inline constexpr WordSet<CMode> kNoC = {CMode::kNone}, kAnyC = {CMode::kNone, CMode::kAccumulate, CMode::kGeneral},
                                kAnyCOrSplit = {CMode::kNone, CMode::kAccumulate, CMode::kGeneral, CMode::kHeadSplit};
inline constexpr WordSet<Major> kKMajor = {Major::kK}, kMnMajor = {Major::kMn}, kAnyMajor = {Major::kK, Major::kMn};
inline constexpr WordSet<ScaleLayout> kForTma = {ScaleLayout::kMnMajor},
                                      kAnyScales = {ScaleLayout::kMnMajor, ScaleLayout::kAny};
inline constexpr WordSet<GroupLayout> kJoint = {GroupLayout::kJoint},
                                      kJointOrBlocks = {GroupLayout::kJoint, GroupLayout::kBlocks};
inline constexpr WordSet<Knob> kAllKnobs = {Knob::kClusters, Knob::kSplitK, Knob::kSwapAb},
                               kNoSplit = {Knob::kClusters, Knob::kSwapAb}, kNoKnobs = {};

}  // namespace words

// clang-format off
inline constexpr OpKind kOpKinds[] = {
    {"fp8_gemm", "gemm", "fp8_gemm", Grouping::kNone, true,
     words::kAllRecipes, words::kAnyD, words::kAnyCOrSplit, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJoint, words::kAllKnobs},
    {"bf16_gemm", "gemm", "bf16_gemm", Grouping::kNone, false,
     words::kNoScales, words::kAnyD, words::kAnyC, words::kAnyMajor, words::kAnyMajor,
     words::kForTma, words::kJoint, words::kAllKnobs},
    {"m_grouped_fp8_gemm_contiguous", "m_grouped_gemm", "fp8_gemm", Grouping::kMContiguous, true,
     words::kPer128, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJoint, words::kNoSplit},
    {"m_grouped_bf16_gemm_contiguous", "m_grouped_gemm", "bf16_gemm", Grouping::kMContiguous, false,
     words::kNoScales, words::kAnyD, words::kNoC, words::kKMajor, words::kAnyMajor,
     words::kForTma, words::kJoint, words::kNoSplit},
    {"m_grouped_fp8_gemm_masked", "m_grouped_gemm", "fp8_gemm", Grouping::kMMasked, true,
     words::kPer128, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJoint, words::kNoSplit},
    {"m_grouped_bf16_gemm_masked", "m_grouped_gemm", "bf16_gemm", Grouping::kMMasked, false,
     words::kNoScales, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kForTma, words::kJoint, words::kNoSplit},
    {"k_grouped_fp8_gemm_contiguous", "k_grouped_gemm", "fp8_gemm", Grouping::kKContiguous, true,
     words::kVectors, words::kFp32D, words::kAnyC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJointOrBlocks, words::kNoSplit},
    {"k_grouped_bf16_gemm_contiguous", "k_grouped_gemm", "bf16_gemm", Grouping::kKContiguous, false,
     words::kNoScales, words::kFp32D, words::kAnyC, words::kMnMajor, words::kMnMajor,
     words::kForTma, words::kJoint, words::kNoSplit},
    {"m_grouped_fp8_gemm_psum", "m_grouped_gemm", "fp8_gemm", Grouping::kMPsum, true,
     words::kPer128, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJoint, words::kNoSplit, "m_grouped_fp8_gemm_contiguous"},
    {"m_grouped_bf16_gemm_psum", "m_grouped_gemm", "bf16_gemm", Grouping::kMPsum, false,
     words::kNoScales, words::kAnyD, words::kNoC, words::kKMajor, words::kAnyMajor,
     words::kForTma, words::kJoint, words::kNoSplit, "m_grouped_bf16_gemm_contiguous"},
    {"k_grouped_fp8_gemm_psum", "k_grouped_gemm", "fp8_gemm", Grouping::kKPsum, true,
     words::kVectors, words::kFp32D, words::kAnyC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJointOrBlocks, words::kNoSplit, "k_grouped_fp8_gemm_contiguous"},
    {"k_grouped_bf16_gemm_psum", "k_grouped_gemm", "bf16_gemm", Grouping::kKPsum, false,
     words::kNoScales, words::kFp32D, words::kAnyC, words::kMnMajor, words::kMnMajor,
     words::kForTma, words::kJoint, words::kNoSplit, "k_grouped_bf16_gemm_contiguous"},
    {"batched_fp8_gemm", "batched_gemm", "fp8_gemm", Grouping::kBatched, true,
     words::kPer128, words::kAnyD, words::kAnyC, words::kKMajor, words::kKMajor,
     words::kAnyScales, words::kJoint, words::kNoSplit},
    {"batched_bf16_gemm", "batched_gemm", "bf16_gemm", Grouping::kBatched, false,
     words::kNoScales, words::kAnyD, words::kAnyC, words::kAnyMajor, words::kAnyMajor,
     words::kForTma, words::kJoint, words::kNoSplit},
    {"summed_bf16_gemm", "batched_gemm", "bf16_gemm", Grouping::kSummed, false,
     words::kNoScales, words::kFp32D, words::kNoC, words::kKMajor, words::kKMajor,
     words::kForTma, words::kJoint, words::kNoSplit},
    {"fp8_mqa_logits", "mqa_logits", "mqa_logits", Grouping::kNone, true,
     words::kNoScales, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kForTma, words::kJoint, words::kNoKnobs, nullptr, Form::kLogits},
    {"fp8_paged_mqa_logits", "mqa_logits", "mqa_logits", Grouping::kNone, true,
     words::kNoScales, words::kAnyD, words::kNoC, words::kKMajor, words::kKMajor,
     words::kForTma, words::kJoint, words::kNoKnobs, nullptr, Form::kPagedLogits},
};
// clang-format on

inline constexpr size_t kNumOps = std::size(kOpKinds);
static_assert(kNumOps <= 256, "an op kind is one byte of a VariantKey");

inline constexpr std::array<Op, kNumOps> kOps = [] {
    std::array<Op, kNumOps> ops{};
    for (size_t i = 0; i < kNumOps; ++i) ops[i] = Op(i);
    return ops;
}();

inline constexpr const OpKind& op_kind(Op op) { return kOpKinds[size_t(op)]; }
inline constexpr Grouping grouping_of(Op op) { return op_kind(op).grouping; }
inline constexpr bool is_fp8(Op op) { return op_kind(op).is_fp8; }
inline constexpr bool is_grouped(Op op) { return op_kind(op).is_grouped(); }
inline constexpr std::string_view op_name(Op op) { return op_kind(op).name; }

// The op kind of the same products whose groups have ends, or nothing.
constexpr std::optional<Op> with_ends(Op op) {
    for (size_t i = 0; i < kNumOps; ++i)
        if (kOpKinds[i].has_ends() && std::string_view(kOpKinds[i].sibling) == op_name(op)) return Op(i);
    return std::nullopt;
}

Op parse_op(std::string_view name);  // throws Error(kProblem)

}  // namespace deep_gemm
