// Products whose rows the groups divide, each with a matrix of B of its own.
//   contiguous: A [m, k], B [num_groups, n, k], D [m, n]; m_indices [m] is the group of each row, or -1 for padding
//   with ends (psum): as contiguous; m_indices [num_groups] is the row behind the last one of each group, and a group
//   starts at the end of the one before, rounded up to the alignment
//   masked: A [num_groups, max_m, k], B [num_groups, n, k], D [num_groups, max_m, n]; masked_m [num_groups] rows count
#include <algorithm>
#include <string>

#include "runtime/family.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

using enum Extent;

constexpr Shape kMatrixB{3, {kNumGroups, kN, kK}};
constexpr Shape kStepsB{3, {kNumGroups, kN, kSteps}}, kBlocksB{3, {kNumGroups, kBlocksN, kSteps}};

constexpr Shapes contiguous_shapes(const Shape& scale_b, Extent groups) {
    const Shape d{2, {kM, kN}};
    return {Shape{2, {kM, kK}}, {2, {kM, kSteps}}, kMatrixB, scale_b, d, d, {1, {groups}}};
}

constexpr Shapes masked_shapes(const Shape& scale_b) {
    const Shape d{3, {kNumGroups, kM, kN}};
    return {Shape{3, {kNumGroups, kM, kK}}, {3, {kNumGroups, kM, kSteps}}, kMatrixB, scale_b, d, d, {1, {kNumGroups}}};
}

constexpr Shapes kContiguous1d2d = contiguous_shapes(kBlocksB, kM), kContiguous1d1d = contiguous_shapes(kStepsB, kM);
constexpr Shapes kPsum1d2d = contiguous_shapes(kBlocksB, kNumGroups),
                 kPsum1d1d = contiguous_shapes(kStepsB, kNumGroups);
constexpr Shapes kMasked1d2d = masked_shapes(kBlocksB), kMasked1d1d = masked_shapes(kStepsB);

const Shapes& get_contiguous_shapes(const Call& call) {
    return call.recipe == Recipe::k1d1d ? kContiguous1d1d : kContiguous1d2d;
}

const Shapes& get_psum_shapes(const Call& call) { return call.recipe == Recipe::k1d1d ? kPsum1d1d : kPsum1d2d; }

const Shapes& get_masked_shapes(const Call& call) { return call.recipe == Recipe::k1d1d ? kMasked1d1d : kMasked1d2d; }

Recipe choose_recipe(std::optional<Recipe> named, const Call&) { return named.value_or(Recipe::k1d2d); }

Sizes read_contiguous_sizes(const Call& call) {
    const TensorView &a = call.a.view, &b = call.b.view;
    return {a.shape[0], b.shape[1], a.shape[1], b.shape[0]};
}

Sizes read_masked_sizes(const Call& call) {
    const TensorView &a = call.a.view, &b = call.b.view;
    return {a.shape[1], b.shape[1], a.shape[2], a.shape[0]};
}

// `first`: the first row of an aligned block that is not padding.
void check_row_group(const Call& call, int64_t first, int64_t row) {
    const int32_t* values = values_of(call.groups);
    if (values[row] == values[first]) return;
    const std::string alignment = std::to_string(call.alignment);
    fail_value(
        entry_text(call.groups.name, row, values[row]) + " and " + entry_text(call.groups.name, first, values[first]) +
        ": rows of a block of " + alignment +
        " (get_mk_alignment_for_contiguous_layout()) must be of one group, or -1; start every group at a multiple of " +
        alignment + ".");
}

void check_contiguous_values(const Call& call, const Sizes& sizes) {
    check_values_within(
        call.groups, -1, sizes.num_groups - 1,
        "a group within 0.." + std::to_string(sizes.num_groups - 1) + ", or -1 for padding; correct it.");
    const int32_t* values = values_of(call.groups);
    for (int64_t start = 0; start < sizes.m; start += call.alignment) {
        int64_t first = -1;
        for (int64_t row = start; row < std::min<int64_t>(start + call.alignment, sizes.m); ++row) {
            if (values[row] == -1) continue;
            if (first < 0) first = row;
            check_row_group(call, first, row);
        }
    }
}

void check_psum_values(const Call& call, const Sizes& sizes) { check_ends(call.groups, call.alignment, sizes.m, "m"); }

void check_masked_values(const Call& call, const Sizes& sizes) {
    check_values_within(call.groups, 0, sizes.m,
                        "within 0.." + std::to_string(sizes.m) + " (max_m); pass the number of rows of that group.");
}

void add_reference_arguments(const Call& call, PyObject* named) {
    set_item(named, "groups", tensor_of(call.groups));
    if (is_fp8(call.op)) set_recipe(named, call.recipe);
}

void add_psum_arguments(const Call& call, PyObject* named) {
    add_reference_arguments(call, named);
    set_item(named, "alignment", Reference::take(PyLong_FromLong(call.alignment)));
    set_item(named, "ensure_zero_padding", Reference::take(PyBool_FromLong(call.ensures_zero_padding)));
}

}  // namespace

const Family kContiguousFamily{.names = {"num_groups", "m", "n", "k", "ceil(k / 128)", "ceil(n / 128)", "", "", ""},
                               .bf16_majors = {MajorRule::kOnlyK, MajorRule::kEither},
                               .fp8_majors = {MajorRule::kOnlyK, MajorRule::kEither},
                               .get_shapes = &get_contiguous_shapes,
                               .choose_recipe = &choose_recipe,
                               .read_sizes = &read_contiguous_sizes,
                               .check_sizes = nullptr,
                               .check_values = &check_contiguous_values,
                               .add_reference_arguments = &add_reference_arguments};

const Family kMPsumFamily{.names = kContiguousFamily.names,
                          .bf16_majors = kContiguousFamily.bf16_majors,
                          .fp8_majors = kContiguousFamily.fp8_majors,
                          .get_shapes = &get_psum_shapes,
                          .choose_recipe = &choose_recipe,
                          .read_sizes = &read_contiguous_sizes,
                          .check_sizes = nullptr,
                          .check_values = &check_psum_values,
                          .add_reference_arguments = &add_psum_arguments};

const Family kMaskedFamily{.names = {"num_groups", "max_m", "n", "k", "ceil(k / 128)", "ceil(n / 128)", "", "", ""},
                           .bf16_majors = {MajorRule::kOnlyK, MajorRule::kOnlyK},
                           .fp8_majors = {MajorRule::kOnlyK, MajorRule::kEither},
                           .get_shapes = &get_masked_shapes,
                           .choose_recipe = &choose_recipe,
                           .read_sizes = &read_masked_sizes,
                           .check_sizes = nullptr,
                           .check_values = &check_masked_values,
                           .add_reference_arguments = &add_reference_arguments};

}  // namespace deep_gemm
