// ReLU of dense BF16 products: A [m, k], B [n, k], D [m, n].
#include "runtime/family.hpp"

namespace deep_gemm {
namespace {

using enum Extent;

constexpr Shape kMatrixD{2, {kM, kN}};
constexpr Shapes kShapes{Shape{2, {kM, kK}}, {}, {2, {kN, kK}}, {}, kMatrixD, kMatrixD, {}};

const Shapes& get_shapes(const Call&) { return kShapes; }

Sizes read_sizes(const Call& call) { return {call.a.view.shape[0], call.b.view.shape[0], call.a.view.shape[1]}; }

void add_reference_arguments(const Call&, PyObject*) {}

}  // namespace

const Family kReluFamily{.names = {"", "m", "n", "k", "", "", "", "", ""},
                         .fp8_majors = {MajorRule::kOnlyK, MajorRule::kOnlyK},
                         .get_shapes = &get_shapes,
                         .choose_recipe = nullptr,
                         .read_sizes = &read_sizes,
                         .check_sizes = nullptr,
                         .check_values = nullptr,
                         .add_reference_arguments = &add_reference_arguments};

}  // namespace deep_gemm
