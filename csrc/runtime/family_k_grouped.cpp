// Products whose K the groups divide: A [m, sum_k], B [n, sum_k], C and D [num_groups, m, n]; ks_tensor [num_groups] is
// the K of each group. With GroupLayout::kBlocks, A and B are 1-D: the matrices [m, k] and [n, k] of one group after
// the other.
// With ends (psum), ks_tensor is where each group ends, and a group starts at the end of the one before, rounded up to
// 128; a block is then as wide as its group rounded up.
#include <numeric>
#include <string>

#include "runtime/family.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

using enum Extent;

constexpr Shapes shapes_of(const Shape& a, const Shape& b) {
    return {a,
            {2, {kM, kSteps}},
            b,
            {2, {kN, kSteps}},
            {3, {kNumGroups, kM, kN}},
            {3, {kNumGroups, kM, kN}},
            {1, {kNumGroups}}};
}

constexpr Shapes kJointShapes = shapes_of({2, {kM, kK}}, {2, {kN, kK}});
constexpr Shapes kBlockShapes = shapes_of({1, {kElementsA}}, {1, {kElementsB}});

const Shapes& get_shapes(const Call& call) { return call.has_blocks() ? kBlockShapes : kJointShapes; }

Recipe choose_recipe(std::optional<Recipe> named, const Call&) {
    if (named.value_or(Recipe::k1d1d) != Recipe::k1d1d)
        throw Error(ErrorKind::kArgument,
                    "recipe = (1, 128, 128): groups of K have both operands scaled 1x128; pass (1, 1, 128) or None.");
    return Recipe::k1d1d;
}

// K of all groups together in blocks of m and n rows: the host's, or else what A or B has room for.
int64_t read_sum_k(const Call& call, int64_t m, int64_t n) {
    if (call.ks) return std::accumulate(call.ks->begin(), call.ks->end(), int64_t(0));
    return m > 0 ? call.a.view.shape[0] / m : n > 0 ? call.b.view.shape[0] / n : 0;
}

Sizes read_sizes(const Call& call) {
    const TensorView &a = call.a.view, &b = call.b.view, &d = call.d.view;
    if (!call.has_blocks()) return {a.shape[0], b.shape[0], a.shape[1], d.shape[0]};
    return {d.shape[1], d.shape[2], read_sum_k(call, d.shape[1], d.shape[2]), d.shape[0]};
}

void check_ks_count(const std::vector<int64_t>& ks, const Sizes& sizes) {
    if (int64_t(ks.size()) != sizes.num_groups)
        fail_shape("ks has " + std::to_string(ks.size()) + " entries: must have one for each of the num_groups = " +
                   std::to_string(sizes.num_groups) + " matrices of d; pass the K of every group.");
}

void check_ks(const std::vector<int64_t>& ks, const Sizes& sizes) {
    check_ks_count(ks, sizes);
    for (size_t i = 0; i < ks.size(); ++i)
        if (ks[i] % kScaleGranularity != 0)
            fail_shape(entry_text("ks", int64_t(i), ks[i]) +
                       ": must be a multiple of 128; pad that group with zeros along K.");
    const int64_t sum = std::accumulate(ks.begin(), ks.end(), int64_t(0));
    if (sum != sizes.k)
        fail_shape("ks sum to " + std::to_string(sum) + " and a has sum_k = " + std::to_string(sizes.k) +
                   ": must be equal; pass the K of every group.");
}

void check_sizes(const Call& call, const Sizes& sizes) {
    if (call.ks) return check_ks(*call.ks, sizes);
    if (sizes.k % kScaleGranularity != 0)
        fail_shape("sum_k = " + std::to_string(sizes.k) +
                   ": the K of every group must be a multiple of 128; pad the groups with zeros along K.");
}

// Where both are given, ks_tensor tells the K of each group, and ks at least their sum: callers that do not wait for
// the device pass [sum_k, 0, ...].
void check_values(const Call& call, const Sizes& sizes) {
    if (!call.groups.is_present()) return;
    check_values_within(call.groups, 0, sizes.k, "within 0..sum_k = " + std::to_string(sizes.k) + "; correct it.");
    const int32_t* values = values_of(call.groups);
    int64_t sum = 0;
    for (int64_t i = 0; i < sizes.num_groups; sum += values[i++])
        if (values[i] % kScaleGranularity != 0)
            fail_shape(entry_text(call.groups.name, i, values[i]) +
                       ": must be a multiple of 128; pad that group with zeros along K.");
    if (sum > sizes.k)
        fail_value(std::string(call.groups.name) + " sums to " + std::to_string(sum) +
                   " and a has sum_k = " + std::to_string(sizes.k) + ": must not be more; pass the K of every group.");
}

// The host's K of each group is a check at most: the device's ends tell, so that nobody has to wait for them.
Sizes read_psum_sizes(const Call& call) {
    const TensorView &a = call.a.view, &b = call.b.view, &d = call.d.view;
    const int64_t m = d.shape[1], n = d.shape[2];
    if (!call.has_blocks()) return {a.shape[0], b.shape[0], a.shape[1], d.shape[0]};
    return {m, n, m > 0 ? a.shape[0] / m : n > 0 ? b.shape[0] / n : 0, d.shape[0]};
}

void check_psum_sizes(const Call& call, const Sizes& sizes) {
    if (!call.groups.is_present())
        throw Error(ErrorKind::kArgument,
                    "ks_tensor = None: with use_psum_layout it says where the groups end; pass it.");
    if (get_mk_alignment() != kScaleGranularity)
        throw Error(ErrorKind::kArgument,
                    "use_psum_layout = True with an alignment of " + std::to_string(get_mk_alignment()) +
                        " (get_k_alignment_for_contiguous_layout()): groups of K start at multiples of 128; call "
                        "set_mk_alignment_for_contiguous_layout(128).");
    if (call.has_blocks() && sizes.k % kScaleGranularity != 0)
        fail_shape("sum_k = " + std::to_string(sizes.k) +
                   ": blocks of groups are multiples of 128 wide; pad every group along K.");
    if (!call.ks) return;
    check_ks_count(*call.ks, sizes);
    int64_t sum = 0;
    for (int64_t k : *call.ks) sum += ceil_div(k, kScaleGranularity) * kScaleGranularity;
    if (sum > ceil_div(sizes.k, kScaleGranularity) * kScaleGranularity)
        fail_shape("ks, each rounded up to a multiple of 128, sum to " + std::to_string(sum) + " and a has sum_k = " +
                   std::to_string(sizes.k) + ": must not be more; pass the K of every group, or None.");
}

void check_psum_values(const Call& call, const Sizes& sizes) {
    check_ends(call.groups, kScaleGranularity, sizes.k, "sum_k");
}

void add_reference_arguments(const Call& call, PyObject* named) {
    set_item(named, "groups", call.groups.is_present() ? tensor_of(call.groups) : make_cpu_tensor(*call.ks));
    set_item(named, "c", tensor_of(call.c));
    if (is_fp8(call.op)) set_item(named, "is_blocks", Reference::take(PyBool_FromLong(call.has_blocks())));
}

}  // namespace

const Family kKGroupedFamily{
    .names = {"num_groups", "m", "n", "sum_k", "sum_k / 128", "", "", "m * sum_k", "n * sum_k"},
    .fp8_majors = {MajorRule::kEither, MajorRule::kEither},
    .get_shapes = &get_shapes,
    .choose_recipe = &choose_recipe,
    .read_sizes = &read_sizes,
    .check_sizes = &check_sizes,
    .check_values = &check_values,
    .add_reference_arguments = &add_reference_arguments};

const Family kKPsumFamily{
    .names = {"num_groups", "m", "n", "sum_k", "ceil(sum_k / 128)", "", "", "m * sum_k", "n * sum_k"},
    .fp8_majors = kKGroupedFamily.fp8_majors,
    .get_shapes = &get_shapes,
    .choose_recipe = &choose_recipe,
    .read_sizes = &read_psum_sizes,
    .check_sizes = &check_psum_sizes,
    .check_values = &check_psum_values,
    .add_reference_arguments = &add_reference_arguments};

}  // namespace deep_gemm
