// An op family: what its ops have besides the one path of a call (run.cpp). The shapes of operands are data; the rest
// are the few functions in which families differ. A new family is one more family_*.cpp and one more row of kFamilies.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/problem.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

// What the size of a dim is.
enum class Extent : uint8_t {
    kNumGroups,
    kM,
    kN,
    kK,
    kSteps,      // blocks of 128 along K
    kBlocksN,    // blocks of 128 along N
    kHeads,      // columns of a D with head splits
    kElementsA,  // of A in one dim: the blocks of all groups
    kElementsB
};
inline constexpr size_t kNumExtents = 9;

struct Shape {
    uint8_t rank = 0;
    std::array<Extent, 3> dims{};
};

// Shapes of the operands, in the order of kOperands.
using Shapes = std::array<Shape, std::size(kOperands)>;

// Along which dims an operand may be contiguous.
enum class MajorRule : uint8_t { kEither, kOnlyK, kOnlyMn };

struct MajorRules {
    MajorRule a, b;
};

struct LoadedKernel;
struct LaunchGeometry;

// The steps of a call in which matrix products and other ops differ; run.cpp calls them in this order. They throw what
// run() throws.
struct Steps {
    // Devices, dtypes, ranks, sizes and shapes; then strides, alignment and overlap of a call that is not empty.
    Sizes (*check_operands)(const Call&);
    Layouts (*check_layout)(const Call&, const Sizes&, const Layouts& preferred);

    // Allocate what the op returns as D; null: D is the caller's.
    void (*make_result)(Call&, const Sizes&);

    void (*run_on_cpu)(const Call&, const Sizes&);

    Problem (*make_problem)(int sm_count, const Call&, const Sizes&, const Layouts&);
    void (*launch)(const LoadedKernel&, const LaunchGeometry&, Call&, const Sizes&, const Layouts&, int num_sms,
                   void* stream);
};

extern const Steps kProductSteps, kLogitsSteps;

// What is not null or empty only for products: shapes, majors and the functions below.
struct Family {
    const Steps* steps = &kProductSteps;
    std::array<const char*, kNumExtents> names{};  // of the extents, in messages
    MajorRules fp8_majors{};  // with those that a pass makes K-major; kernels of BF16 read those of the op kind's row

    const Shapes& (*get_shapes)(const Call&) = nullptr;

    // FP8: the recipe that the caller named or that the scales show; may be null without FP8 op kinds. Throws
    // Error(kArgument): the op has no such recipe.
    Recipe (*choose_recipe)(std::optional<Recipe> named, const Call&) = nullptr;

    // Sizes of operands whose ranks were checked.
    Sizes (*read_sizes)(const Call&) = nullptr;

    // The rules between sizes besides the shapes of operands; may be null. Throws Error(kShape), Error(kArgument).
    void (*check_sizes)(const Call&, const Sizes&) = nullptr;

    // What `groups` holds, of a call on the CPU; may be null. Kernels cannot check it, they are only safe against it.
    // Throws Error(kArgument).
    void (*check_values)(const Call&, const Sizes&) = nullptr;

    // Add the arguments of the reference besides a, b, d and the scales to the dict `named`. Throws PythonError.
    void (*add_reference_arguments)(const Call&, PyObject* named) = nullptr;
};

extern const Family kDenseFamily, kContiguousFamily, kMaskedFamily, kKGroupedFamily, kMPsumFamily, kKPsumFamily,
    kBatchedFamily, kSummedFamily, kLogitsFamily;

// Which family of functions serves which op kinds.
struct FamilyRow {
    std::string_view family;  // of the op kind's row
    Grouping grouping;
    const Family* functions;
};

inline constexpr FamilyRow kFamilies[] = {
    {"gemm", Grouping::kNone, &kDenseFamily},
    {"m_grouped_gemm", Grouping::kMContiguous, &kContiguousFamily},
    {"m_grouped_gemm", Grouping::kMMasked, &kMaskedFamily},
    {"k_grouped_gemm", Grouping::kKContiguous, &kKGroupedFamily},
    {"m_grouped_gemm", Grouping::kMPsum, &kMPsumFamily},
    {"k_grouped_gemm", Grouping::kKPsum, &kKPsumFamily},
    {"batched_gemm", Grouping::kBatched, &kBatchedFamily},
    {"batched_gemm", Grouping::kSummed, &kSummedFamily},
    {"mqa_logits", Grouping::kNone, &kLogitsFamily},
};

constexpr const Family* find_family(const OpKind& kind) {
    for (const FamilyRow& row : kFamilies)
        if (row.family == kind.family && row.grouping == kind.grouping) return row.functions;
    throw "every op kind needs a row in kFamilies";  // the compiler shows this line
}

inline constexpr std::array<const Family*, kNumOps> kFamilyOfOp = [] {
    std::array<const Family*, kNumOps> families{};
    for (size_t i = 0; i < kNumOps; ++i) families[i] = find_family(kOpKinds[i]);
    return families;
}();

inline const Family& family_of(Op op) { return *kFamilyOfOp[size_t(op)]; }

inline const char* name_of(const Family& family, Extent extent) { return family.names[size_t(extent)]; }

}  // namespace deep_gemm
