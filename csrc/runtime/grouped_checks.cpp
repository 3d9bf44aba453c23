#include "runtime/grouped_checks.hpp"

#include <numeric>
#include <string>

#include "runtime/operand_checks.hpp"

namespace deep_gemm {
namespace {

// How messages call the dims of an op.
struct DimNames {
    const char *rows, *k, *steps;
};

DimNames dim_names(const GroupedCall& call) {
    switch (call.grouping()) {
        case Grouping::kMMasked: return {"max_m", "k", "ceil(k / 128)"};
        case Grouping::kKContiguous: return {"m", "sum_k", "sum_k / 128"};
        default: return {"m", "k", "ceil(k / 128)"};
    }
}

bool has_groups_of_a(const GroupedCall& call) { return call.grouping() == Grouping::kMMasked; }
bool has_groups_of_d(const GroupedCall& call) { return call.grouping() != Grouping::kMContiguous; }

void check_devices(const GroupedCall& call) {
    const GemmOperands& all = call.operands;
    for (const Operand* operand : {&all.a, &all.scale_a, &all.b, &all.scale_b, &all.d, &all.c, &call.groups})
        if (operand->is_present()) check_device(*operand, all.a);
}

void check_dtypes(const GroupedCall& call) {
    const Operand &d = call.operands.d, &c = call.operands.c;
    check_input_dtypes(call.operands, call.options.op);
    if (call.groups.is_present()) check_dtype(call.groups, Dtype::kInt32, "convert it with .int().");
    if (call.is_k_divided())
        check_dtype(d, Dtype::kFloat32, "groups of K sum into an FP32 d; allocate it as torch.float32.");
    if (d.view.dtype != Dtype::kBfloat16 && d.view.dtype != Dtype::kFloat32)
        fail_dtype(d, "must be torch.bfloat16 or torch.float32; allocate d as one of them.");
    if (c.is_present()) check_dtype(c, d.view.dtype, "convert c to the dtype of d.");
}

// `operand` as rows and columns, after num_groups where it has groups.
void check_matrix_rank(const Operand& operand, bool has_groups, const char* rows, const char* columns) {
    if (!operand.is_present()) return;
    if (has_groups) return check_rank(operand, {"num_groups", rows, columns});
    check_rank(operand, {rows, columns});
}

void check_input_ranks(const GroupedCall& call) {
    const DimNames names = dim_names(call);
    if (call.has_blocks()) {
        check_rank(call.operands.a, {"m * sum_k"});
        return check_rank(call.operands.b, {"n * sum_k"});
    }
    check_matrix_rank(call.operands.a, has_groups_of_a(call), names.rows, names.k);
    check_matrix_rank(call.operands.b, !call.is_k_divided(), "n", names.k);
}

const char* scale_rows_of_b(const GroupedCall& call) {
    return call.options.recipe == Recipe::k1d1d ? "n" : "ceil(n / 128)";
}

void check_ranks(const GroupedCall& call) {
    const DimNames names = dim_names(call);
    check_input_ranks(call);
    check_matrix_rank(call.operands.scale_a, has_groups_of_a(call), names.rows, names.steps);
    check_matrix_rank(call.operands.scale_b, !call.is_k_divided(), scale_rows_of_b(call), names.steps);
    check_matrix_rank(call.operands.d, has_groups_of_d(call), names.rows, "n");
    check_matrix_rank(call.operands.c, has_groups_of_d(call), names.rows, "n");
    if (call.groups.is_present()) check_rank(call.groups, {has_groups_of_d(call) ? "num_groups" : "m"});
}

// K of all groups together in blocks of m and n rows: the host's, or else what A or B has room for.
int64_t read_sum_k(const GroupedCall& call, int64_t m, int64_t n) {
    const TensorView &a = call.operands.a.view, &b = call.operands.b.view;
    if (call.ks) return std::accumulate(call.ks->begin(), call.ks->end(), int64_t(0));
    return m > 0 ? a.shape[0] / m : n > 0 ? b.shape[0] / n : 0;
}

GroupedSizes read_sizes(const GroupedCall& call) {
    const TensorView &a = call.operands.a.view, &b = call.operands.b.view, &d = call.operands.d.view;
    switch (call.grouping()) {
        case Grouping::kMMasked: return {{a.shape[1], b.shape[1], a.shape[2]}, a.shape[0]};
        case Grouping::kKContiguous:
            if (call.has_blocks())
                return {{d.shape[1], d.shape[2], read_sum_k(call, d.shape[1], d.shape[2])}, d.shape[0]};
            return {{a.shape[0], b.shape[0], a.shape[1]}, d.shape[0]};
        default: return {{a.shape[0], b.shape[1], a.shape[1]}, b.shape[0]};
    }
}

void check_limits(const GroupedCall& call, const GroupedSizes& sizes) {
    const DimNames names = dim_names(call);
    check_limit(names.rows, sizes.gemm.m);
    check_limit("n", sizes.gemm.n);
    check_limit(names.k, sizes.gemm.k);
    if (sizes.num_groups > Problem::kMaxGroups)
        fail_shape("num_groups = " + std::to_string(sizes.num_groups) + ": must be at most " +
                   std::to_string(Problem::kMaxGroups) + "; split the groups among several calls.");
}

void check_ks(const std::vector<int64_t>& ks, const GroupedSizes& sizes) {
    if (int64_t(ks.size()) != sizes.num_groups)
        fail_shape("ks has " + std::to_string(ks.size()) + " entries: must have one for each of the num_groups = " +
                   std::to_string(sizes.num_groups) + " matrices of d; pass the K of every group.");
    for (size_t i = 0; i < ks.size(); ++i)
        if (ks[i] % kScaleGranularity != 0)
            fail_shape("ks[" + std::to_string(i) + "] = " + std::to_string(ks[i]) +
                       ": must be a multiple of 128; fill the K of that group up with zeros.");
    const int64_t sum = std::accumulate(ks.begin(), ks.end(), int64_t(0));
    if (sum != sizes.gemm.k)
        fail_shape("ks sum to " + std::to_string(sum) + " and a has sum_k = " + std::to_string(sizes.gemm.k) +
                   ": must be equal; pass the K of every group.");
}

void check_divided_k(const GroupedCall& call, const GroupedSizes& sizes) {
    if (!call.is_k_divided()) return;
    if (call.ks) return check_ks(*call.ks, sizes);
    if (sizes.gemm.k % kScaleGranularity != 0)
        fail_shape("sum_k = " + std::to_string(sizes.gemm.k) +
                   ": the K of every group must be a multiple of 128; fill them up with zeros.");
}

void check_matrix_shape(const Operand& operand, bool has_groups, int64_t num_groups, const Dim& rows,
                        const Dim& columns) {
    if (!operand.is_present()) return;
    if (has_groups) return check_shape(operand, {{"num_groups", num_groups}, rows, columns});
    check_shape(operand, {rows, columns});
}

void check_input_shapes(const GroupedCall& call, const GroupedSizes& sizes, const Dim& m, const Dim& k) {
    const GemmOperands& operands = call.operands;
    if (call.has_blocks()) {
        check_shape(operands.a, {{"m * sum_k", m.size * k.size}});
        return check_shape(operands.b, {{"n * sum_k", sizes.gemm.n * k.size}});
    }
    check_matrix_shape(operands.a, has_groups_of_a(call), sizes.num_groups, m, k);
    check_matrix_shape(operands.b, !call.is_k_divided(), sizes.num_groups, {"n", sizes.gemm.n}, k);
}

void check_shapes(const GroupedCall& call, const GroupedSizes& sizes) {
    const GemmOperands& operands = call.operands;
    const DimNames names = dim_names(call);
    const Dim m{names.rows, sizes.gemm.m}, n{"n", sizes.gemm.n}, k{names.k, sizes.gemm.k};
    const Dim steps{names.steps, ceil_div(k.size, kScaleGranularity)};
    const int64_t scale_rows = call.options.recipe == Recipe::k1d1d ? n.size : ceil_div(n.size, kScaleGranularity);
    check_input_shapes(call, sizes, m, k);
    check_matrix_shape(operands.scale_a, has_groups_of_a(call), sizes.num_groups, m, steps);
    check_matrix_shape(operands.scale_b, !call.is_k_divided(), sizes.num_groups, {scale_rows_of_b(call), scale_rows},
                       steps);
    check_matrix_shape(operands.d, has_groups_of_d(call), sizes.num_groups, m, n);
    check_matrix_shape(operands.c, has_groups_of_d(call), sizes.num_groups, m, n);
    if (call.groups.is_present())
        check_shape(call.groups, {has_groups_of_d(call) ? Dim{"num_groups", sizes.num_groups} : m});
}

}  // namespace

GroupedSizes check_grouped(const GroupedCall& call) {
    check_devices(call);
    check_dtypes(call);
    check_ranks(call);
    const GroupedSizes sizes = read_sizes(call);
    check_limits(call, sizes);
    check_divided_k(call, sizes);
    check_shapes(call, sizes);
    return sizes;
}

}  // namespace deep_gemm
