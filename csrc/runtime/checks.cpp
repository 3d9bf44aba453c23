#include "runtime/checks.hpp"

#include <string>

#include "runtime/family.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/signals.hpp"

namespace deep_gemm {
namespace {

void check_devices(const Call& call) {
    for (Operand Call::* member : kOperands)
        if (const Operand& operand = call.*member; operand.is_present()) check_device(operand, call.a);
}

void check_input_dtypes(const Call& call) {
    constexpr const char* kQuantise =
        "quantise it, e.g. with per_token_cast_to_fp8 or per_block_cast_to_fp8; FP4 is SM100 only.";
    for (const Operand* operand : {&call.a, &call.b})
        check_dtype(*operand, is_fp8(call.op) ? Dtype::kFloat8E4M3 : Dtype::kBfloat16,
                    is_fp8(call.op) ? kQuantise : "convert it with .bfloat16().");
    for (const Operand* scales : {&call.scale_a, &call.scale_b})
        if (scales->is_present())
            check_dtype(*scales, Dtype::kFloat32, "scales stay FP32 on SM90; packed UE8M0 is SM100 only.");
    if (call.groups.is_present()) check_dtype(call.groups, Dtype::kInt32, "convert it with .int().");
}

void check_output_dtypes(const Call& call) {
    const Dtype dtype = call.d.view.dtype;
    if (call.heads.is_given()) check_dtype(call.d, Dtype::kBfloat16, "allocate d as torch.bfloat16.");
    const OpKind& kind = op_kind(call.op);
    if (!kind.d_dtypes.has(DDtype::kBf16) && !kind.is_summed())  // a sum's parts are FP32, its D is either
        check_dtype(call.d, Dtype::kFloat32, "groups of K sum into an FP32 d; allocate it as torch.float32.");
    if (dtype != Dtype::kBfloat16 && dtype != Dtype::kFloat32)
        fail_dtype(call.d, "must be torch.bfloat16 or torch.float32; allocate d as one of them.");
    if (call.c.is_present()) check_dtype(call.c, dtype, "convert c to the dtype of d.");
}

// The dims that an operand must have, by name and size.
struct Dims {
    std::array<Dim, 3> dims;
    size_t rank;

    operator std::span<const Dim>() const { return {dims.data(), rank}; }
};

using ExtentSizes = std::array<int64_t, kNumExtents>;

Dims dims_of(const Family& family, const Shape& shape, const ExtentSizes& sizes) {
    Dims result{{}, shape.rank};
    for (size_t i = 0; i < shape.rank; ++i)
        result.dims[i] = {name_of(family, shape.dims[i]), sizes[size_t(shape.dims[i])]};
    return result;
}

void check_ranks(const Call& call, const Family& family, const Shapes& shapes) {
    for (size_t i = 0; i < shapes.size(); ++i) {
        const Operand& operand = call.*kOperands[i];
        if (operand.is_present() && operand.view.rank != shapes[i].rank)
            fail_rank(operand, dims_of(family, shapes[i], {}));
    }
}

void check_limits(const Family& family, const Sizes& sizes) {
    check_limit(name_of(family, Extent::kM), sizes.m);
    check_limit(name_of(family, Extent::kN), sizes.n);
    check_limit(name_of(family, Extent::kK), sizes.k);
    if (sizes.num_groups > Problem::kMaxGroups)
        fail_shape("num_groups = " + std::to_string(sizes.num_groups) + ": must be at most " +
                   std::to_string(Problem::kMaxGroups) + "; split the groups among several calls.");
}

// In the order of Extent.
ExtentSizes extent_sizes(const Call& call, const Sizes& sizes) {
    const int64_t m = sizes.m, n = sizes.n, k = sizes.k;
    return {sizes.num_groups,        m,     n,    k, ceil_div(k, kScaleGranularity), ceil_div(n, kScaleGranularity),
            call.heads.d_columns(n), m * k, n * k};
}

bool has_shape(const TensorView& view, const Shape& shape, const ExtentSizes& sizes) {
    for (size_t i = 0; i < shape.rank; ++i)
        if (view.shape[i] != sizes[size_t(shape.dims[i])]) return false;
    return true;
}

// The size of `extent` as `operand` has it, or -1 where none of its dims is that.
int64_t size_in(const Operand& operand, const Shape& shape, Extent extent) {
    for (size_t i = 0; i < shape.rank && operand.is_present(); ++i)
        if (shape.dims[i] == extent) return operand.view.shape[i];
    return -1;
}

// `sizes` come from A and B. Where these do not fit together, D says which of them is wrong, and what it must be.
[[noreturn]] void fail_sizes(const Call& call, const Family& family, const Shapes& shapes, size_t index, Sizes sizes) {
    constexpr size_t kA = 0, kB = 2, kD = 4;  // in kOperands
    const int64_t m = size_in(call.d, shapes[kD], Extent::kM), n = size_in(call.d, shapes[kD], Extent::kN);
    if (index == kB && n == sizes.n && m >= 0 && m != sizes.m) {
        sizes.m = m, sizes.k = size_in(call.b, shapes[kB], Extent::kK);
        index = kA;
    } else if (index == kB) {
        sizes.n = n;
    }
    fail_dims(call.*kOperands[index], dims_of(family, shapes[index], extent_sizes(call, sizes)));
}

void check_shapes(const Call& call, const Family& family, const Shapes& shapes, const Sizes& sizes) {
    const ExtentSizes extents = extent_sizes(call, sizes);
    for (size_t i = 0; i < shapes.size(); ++i) {
        const Operand& operand = call.*kOperands[i];
        if (operand.is_present() && !has_shape(operand.view, shapes[i], extents))
            fail_sizes(call, family, shapes, i, sizes);
    }
}

void check_output_layout(const Call& call, const Family& family) {
    check_rows(call.d, name_of(family, call.heads.is_given() ? Extent::kHeads : Extent::kN));
    check_groups_apart(call.d);
    check_alignment(call.d, kPitchAlignment);
}

void check_groups_layout(const Call& call) {
    if (!call.groups.is_present()) return;
    check_contiguous(call.groups);
    check_alignment(call.groups, sizeof(int32_t));
    check_no_overlap(call.d, call.groups);
}

CMode c_mode(const Call& call) {
    if (call.heads.is_given()) return CMode::kHeadSplit;
    return check_c(call.c, call.d, call.alpha == 1.0f && call.beta == 1.0f);
}

MajorRule major_rule(WordSet<Major> majors) {
    if (!majors.has(Major::kMn)) return MajorRule::kOnlyK;
    return majors.has(Major::kK) ? MajorRule::kEither : MajorRule::kOnlyMn;
}

Major check_input_major(const Operand& data, const char* row_dim, const char* k_dim, MajorRule rule, Major preferred) {
    if (data.view.rank == 1) return check_contiguous(data), Major::kK;
    switch (rule) {
        case MajorRule::kOnlyK: return check_rows(data, k_dim), Major::kK;
        case MajorRule::kOnlyMn: return check_rows(transposed(data), row_dim), Major::kMn;
        default: return check_major(data, row_dim, k_dim, preferred);
    }
}

void check_input_memory(const Operand& data, const Operand& scales, const Operand& d) {
    check_alignment(data, kPitchAlignment);
    check_no_overlap(d, data);
    if (!scales.is_present()) return;
    check_alignment(scales, sizeof(float));
    check_no_overlap(d, scales);
}

}  // namespace

ScaleLayout scale_layout(const Call& call) {
    if (!is_fp8(call.op) || call.recipe == Recipe::kPerRow) return ScaleLayout::kMnMajor;
    const bool is_b_good = call.recipe != Recipe::k1d1d || is_mn_major(call.scale_b.view);
    return is_b_good && is_mn_major(call.scale_a.view) ? ScaleLayout::kMnMajor : ScaleLayout::kAny;
}

Sizes check_operands(const Call& call) {
    const Family& family = family_of(call.op);
    check_devices(call);
    check_input_dtypes(call);
    check_output_dtypes(call);
    const Shapes& shapes = family.get_shapes(call);
    check_ranks(call, family, shapes);
    const Sizes sizes = family.read_sizes(call);
    check_limits(family, sizes);
    if (family.check_sizes != nullptr) family.check_sizes(call, sizes);
    check_shapes(call, family, shapes, sizes);
    if (call.signal.is_present()) check_signal(call, sizes);
    // A sum of no products is one over no K: D is C or 0.
    if (op_kind(call.op).is_summed() && sizes.num_groups == 0) return {sizes.m, sizes.n, 0, 1};
    return sizes;
}

Layouts check_layout(const Call& call, const Sizes& sizes, const Layouts& preferred) {
    const Family& family = family_of(call.op);
    check_output_layout(call, family);
    check_groups_layout(call);
    if (call.signal.is_present()) check_signal_layout(call);
    Layouts layouts{.c = c_mode(call)};
    if (sizes.k == 0) return layouts;  // a and b hold nothing
    const OpKind& kind = op_kind(call.op);
    const MajorRules rules =
        kind.is_fp8 ? family.fp8_majors : MajorRules{major_rule(kind.a_majors), major_rule(kind.b_majors)};
    const char* k_dim = name_of(family, Extent::kK);
    layouts.a = check_input_major(call.a, name_of(family, Extent::kM), k_dim, rules.a, preferred.a);
    check_input_memory(call.a, call.scale_a, call.d);
    layouts.b = check_input_major(call.b, name_of(family, Extent::kN), k_dim, rules.b, preferred.b);
    check_input_memory(call.b, call.scale_b, call.d);
    layouts.scales = scale_layout(call);
    return layouts;
}

}  // namespace deep_gemm
