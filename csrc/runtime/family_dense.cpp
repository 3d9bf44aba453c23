// Dense products: A [m, k], B [n, k], D [m, n].
#include <string>

#include "runtime/family.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

using enum Extent;

constexpr Shape kMatrixA{2, {kM, kK}}, kMatrixB{2, {kN, kK}}, kMatrixD{2, {kM, kN}}, kHeadsOfD{2, {kM, kHeads}};
constexpr Shape kStepsA{2, {kM, kSteps}}, kStepsB{2, {kN, kSteps}}, kBlocksB{2, {kBlocksN, kSteps}};

constexpr Shapes k1d2dShapes{kMatrixA, kStepsA, kMatrixB, kBlocksB, kMatrixD, kMatrixD, {}};
constexpr Shapes k1d1dShapes{kMatrixA, kStepsA, kMatrixB, kStepsB, kMatrixD, kMatrixD, {}};
constexpr Shapes kPerRowShapes{kMatrixA, {1, {kM}}, kMatrixB, {1, {kN}}, kMatrixD, kMatrixD, {}};
constexpr Shapes kHeadShapes{kMatrixA, kStepsA, kMatrixB, kBlocksB, kHeadsOfD, kMatrixD, {}};

const Shapes& get_shapes(const Call& call) {
    if (call.heads.is_given()) return kHeadShapes;
    switch (call.recipe) {
        case Recipe::k1d1d: return k1d1dShapes;
        case Recipe::kPerRow: return kPerRowShapes;
        default: return k1d2dShapes;
    }
}

// Without a named recipe, 1-D scales on both sides are one per row.
Recipe choose_recipe(std::optional<Recipe> named, const Call& call) {
    const bool is_per_row = call.scale_a.view.rank == 1 && call.scale_b.view.rank == 1;
    const Recipe recipe = named.value_or(is_per_row ? Recipe::kPerRow : Recipe::k1d2d);
    if (call.heads.is_given() && recipe != Recipe::k1d2d)  // callers have no other, so there are no other kernels
        throw Error(
            ErrorKind::kArgument,
            "recipe: a product with head splits takes scales 1x128 of A and 128x128 of B only; pass such scales "
            "and (1, 128, 128) or None.");
    return recipe;
}

Sizes read_sizes(const Call& call) { return {call.a.view.shape[0], call.b.view.shape[0], call.a.view.shape[1]}; }

void check_sizes(const Call& call, const Sizes& sizes) {
    const HeadSplits& heads = call.heads;
    if (!heads.is_given()) return;
    const int64_t width = heads.left + heads.right;
    if (sizes.n % width != 0)
        fail_shape("n = " + std::to_string(sizes.n) + ": must be a multiple of left + right = " +
                   std::to_string(width) + " of head_splits; pass whole heads.");
    check_limit("d.shape[1]", heads.d_columns(sizes.n));
}

void add_reference_arguments(const Call& call, PyObject* named) {
    set_item(named, "c", tensor_of(call.c));
    set_item(named, "alpha", Reference::take(PyFloat_FromDouble(call.alpha)));
    set_item(named, "beta", Reference::take(PyFloat_FromDouble(call.beta)));
    if (is_fp8(call.op)) set_recipe(named, call.recipe);
    const HeadSplits& heads = call.heads;
    if (heads.is_given())
        set_item(
            named, "head_splits",
            Reference::take(Py_BuildValue("(LLL)", static_cast<long long>(heads.left),
                                          static_cast<long long>(heads.mid), static_cast<long long>(heads.right))));
}

}  // namespace

const Family kDenseFamily{
    .names = {"num_groups", "m", "n", "k", "ceil(k / 128)", "ceil(n / 128)", "heads * (left + mid + right)", "", ""},
    .fp8_majors = {MajorRule::kEither, MajorRule::kEither},
    .get_shapes = &get_shapes,
    .choose_recipe = &choose_recipe,
    .read_sizes = &read_sizes,
    .check_sizes = &check_sizes,
    .check_values = nullptr,
    .add_reference_arguments = &add_reference_arguments};

}  // namespace deep_gemm
