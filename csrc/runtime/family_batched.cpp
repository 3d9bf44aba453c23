// Products of groups that are whole matrices: A [num_groups, m, k], B [num_groups, n, k].
//   batched: every group has a D of its own, C and D [num_groups, m, n]
//   summed: the products of all groups add up to one D, C and D [m, n]
#include <string>

#include "core/legality.hpp"
#include "runtime/family.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

using enum Extent;

constexpr Shapes shapes_of(const Shape& scale_b, const Shape& d) {
    return {
        Shape{3, {kNumGroups, kM, kK}}, {3, {kNumGroups, kM, kSteps}}, {3, {kNumGroups, kN, kK}}, scale_b, d, d, {}};
}

constexpr Shape kStepsB{3, {kNumGroups, kN, kSteps}}, kBlocksB{3, {kNumGroups, kBlocksN, kSteps}};
constexpr Shape kMatricesD{3, {kNumGroups, kM, kN}};
constexpr Shapes k1d2dShapes = shapes_of(kBlocksB, kMatricesD), k1d1dShapes = shapes_of(kStepsB, kMatricesD);
constexpr Shapes kSummedShapes = shapes_of(kBlocksB, {2, {kM, kN}});

const Shapes& get_batched_shapes(const Call& call) { return call.recipe == Recipe::k1d1d ? k1d1dShapes : k1d2dShapes; }

const Shapes& get_summed_shapes(const Call&) { return kSummedShapes; }

Recipe choose_recipe(std::optional<Recipe> named, const Call&) { return named.value_or(Recipe::k1d2d); }

Sizes read_sizes(const Call& call) {
    const TensorView &a = call.a.view, &b = call.b.view;
    return {a.shape[1], b.shape[1], a.shape[2], a.shape[0]};
}

// The kernel counts the K steps of all groups together in 32 bits.
void check_summed_sizes(const Call& call, const Sizes& sizes) {
    if (call.c.is_present() && call.d.view.dtype != Dtype::kFloat32)
        fail_dtype(call.d, "a sum takes c with an FP32 d only; allocate d as torch.float32, or leave c out.");
    const int64_t steps = sizes.num_groups * count_steps(sizes.k, call.op);
    if (steps > Problem::kMaxDim)
        fail_shape("num_groups * ceil(k / 64) = " + std::to_string(steps) +
                   ": must be below 2^31; split the sum among several calls.");
}

void add_reference_arguments(const Call& call, PyObject* named) {
    set_item(named, "c", tensor_of(call.c));
    if (is_fp8(call.op)) set_recipe(named, call.recipe);
}

}  // namespace

const Family kBatchedFamily{.names = {"num_groups", "m", "n", "k", "ceil(k / 128)", "ceil(n / 128)", "", "", ""},
                            .fp8_majors = {MajorRule::kEither, MajorRule::kEither},
                            .get_shapes = &get_batched_shapes,
                            .choose_recipe = &choose_recipe,
                            .read_sizes = &read_sizes,
                            .check_sizes = nullptr,
                            .check_values = nullptr,
                            .add_reference_arguments = &add_reference_arguments};

const Family kSummedFamily{.names = {"num_groups", "m", "n", "k", "ceil(k / 128)", "ceil(n / 128)", "", "", ""},
                           .fp8_majors = {MajorRule::kOnlyK, MajorRule::kOnlyK},
                           .get_shapes = &get_summed_shapes,
                           .choose_recipe = nullptr,
                           .read_sizes = &read_sizes,
                           .check_sizes = &check_summed_sizes,
                           .check_values = nullptr,
                           .add_reference_arguments = &add_reference_arguments};

}  // namespace deep_gemm
