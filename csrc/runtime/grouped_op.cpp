#include "runtime/grouped_op.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "runtime/arguments.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/grouped_checks.hpp"
#include "runtime/grouped_launch.hpp"
#include "runtime/kernel_checks.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"
#include "runtime/transpose.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

constexpr int kSignificantBits = 3;

py::object groups_on_cpu(const GroupedCall& call) {
    if (call.groups.is_present()) return tensor_of(call.groups);
    return py::module_::import("torch").attr("tensor")(*call.ks,
                                                       "dtype"_a = py::module_::import("torch").attr("int32"));
}

void run_on_cpu(const GroupedCall& call, const GroupedSizes& sizes) {
    check_group_values(call, sizes);
    const GemmOperands& operands = call.operands;
    py::dict named("a"_a = tensor_of(operands.a), "b"_a = tensor_of(operands.b), "d"_a = tensor_of(operands.d),
                   "groups"_a = groups_on_cpu(call));
    const bool has_scales = is_fp8(call.options.op);
    if (has_scales) named["scale_a"] = tensor_of(operands.scale_a), named["scale_b"] = tensor_of(operands.scale_b);
    if (call.is_k_divided()) named["c"] = tensor_of(operands.c);
    if (has_scales && call.is_k_divided()) named["is_blocks"] = call.has_blocks();
    if (has_scales && !call.is_k_divided()) named["recipe"] = recipe_name(call.options.recipe);
    run_reference(call.options.op, named, py::none());
}

// D = C, or 0.
void run_without_k(const Gpu& gpu, const GemmOperands& operands, void* stream) {
    const TensorView& d = operands.d.view;
    if (!operands.c.is_present()) return launch_zero_fill(gpu, d, stream);
    if (!is_same_memory(operands.c.view, d)) copy_matrices(operands.d, operands.c, stream_handle(stream, d));
}

Problem make_problem(const Gpu& gpu, const GroupedCall& call, const GroupedSizes& sizes, const GemmLayouts& layouts) {
    const bool is_bf16 = !is_fp8(call.options.op);
    return {
        .op = call.options.op,
        .m = sizes.gemm.m,
        .n = sizes.gemm.n,
        .k = sizes.gemm.k,
        .num_sms = get_sm_limit(gpu.device.sm_count),
        .num_groups = int32_t(sizes.num_groups),
        .expected_m = call.expected_m ? round_expected_m(*call.expected_m, sizes.gemm.m) : 0,
        .alignment = call.grouping() == Grouping::kMContiguous ? call.alignment : int32_t(Problem::kDefaultAlignment),
        .compiled_dims = call.options.compiled_dims,
        .recipe = call.options.recipe,
        .d_dtype = call.operands.d.view.dtype == Dtype::kFloat32 ? DDtype::kFp32 : DDtype::kBf16,
        .c_mode = layouts.c,
        .a_major = is_bf16 ? layouts.a : Major::kK,
        .b_major = is_bf16 ? layouts.b : Major::kK,
        .scale_layout = layouts.scales,
        .group_layout = call.layout,
        .batch_invariant = is_batch_invariant()};
}

// Memory that must live until the call is enqueued.
struct CallMemory {
    py::object a, b, groups, map_slots;
};

// FP8 operands that are not K-major are copied; the copies keep to the SMs of the problem, as the product does.
void copy_to_k_major(const Gpu& gpu, GroupedCall& call, const GemmLayouts& layouts, int num_sms, void* stream,
                     CallMemory& memory) {
    const py::object handle = stream_handle(stream, call.operands.a.view);
    for (auto [operand, major, kept] :
         {std::tuple(&call.operands.a, layouts.a, &memory.a), std::tuple(&call.operands.b, layouts.b, &memory.b)}) {
        if (major == Major::kK) continue;
        KMajorCopy copy = make_k_major(gpu, *operand, num_sms, stream, handle);
        *operand = copy.operand;
        *kept = std::move(copy.memory);
    }
}

// What the caller left out: K of the groups on the device, and room for the tensor maps of blocks.
uint64_t complete(GroupedCall& call, const LoadedKernel& kernel, const LaunchGeometry& geometry, void* stream,
                  CallMemory& memory) {
    const TensorView d = call.operands.d.view;
    if (!call.groups.is_present()) {
        memory.groups = make_ks_tensor(*call.ks, d.ordinal, stream_handle(stream, d));
        call.groups = make_operand("ks_tensor", memory.groups.ptr());
    }
    if (!call.has_blocks()) return 0;
    memory.map_slots = empty_fp8(1, map_slots_bytes(kernel.config, geometry), d.ordinal, stream_handle(stream, d));
    return make_operand("map_slots", memory.map_slots.ptr()).view.address;
}

void launch_complete(GroupedCall& call, const LoadedKernel& kernel, const LaunchGeometry& geometry,
                     const GroupedSizes& sizes, const GemmLayouts& layouts, int num_sms, void* stream) {
    CallMemory memory;
    const uint64_t map_slots = complete(call, kernel, geometry, stream, memory);
    if (is_fp8(call.options.op)) copy_to_k_major(*kernel.gpu, call, layouts, num_sms, stream, memory);
    launch_grouped(kernel, geometry, call, sizes, map_slots, stream);
}

void run_on_gpu(GroupedCall& call, const GroupedSizes& sizes, const GemmLayouts& layouts) {
    const TensorView& d = call.operands.d.view;
    const Gpu& gpu = get_supported_gpu(d.ordinal);
    void* stream = parse_stream(call.options.stream, d.ordinal, d.is_described);
    if (sizes.gemm.k == 0) return run_without_k(gpu, call.operands, stream);
    const Problem problem = make_problem(gpu, call, sizes, layouts);
    const DispatchEntry entry = get_dispatch_entry(gpu, problem);
    launch_complete(call, *entry.kernel, entry.geometry, sizes, layouts, problem.num_sms, stream);
}

void check_kernel_alignment(const LoadedKernel& kernel, const Problem& given) {
    if (fits_alignment(given, kernel.config)) return;
    const std::string rows = std::to_string(kernel.config.block_m * kernel.config.cluster_m);
    throw Error(ErrorKind::kArgument,
                "config = " + to_string(kernel.config) + ": its tiles of block_m * cluster_m = " + rows +
                    " rows do not divide get_mk_alignment_for_contiguous_layout() = " +
                    std::to_string(given.alignment) + "; set a multiple of " + rows + " or compile a smaller tile.");
}

// The kernel's variant, which may take more than the operands ask for, with their sizes.
Problem sized_variant(const LoadedKernel& kernel, const GroupedSizes& sizes) {
    Problem problem = kernel.problem;
    problem.m = sizes.gemm.m, problem.n = sizes.gemm.n, problem.k = sizes.gemm.k;
    problem.num_groups = int32_t(sizes.num_groups);
    return problem;
}

}  // namespace

int64_t round_expected_m(int64_t expected_m, int64_t m) {
    const int64_t rows = std::clamp<int64_t>(expected_m, 1, m);
    const int shift = std::max(int(std::bit_width(uint64_t(rows))) - kSignificantBits, 0);
    return std::min(m, (rows + (int64_t(1) << shift) - 1) >> shift << shift);
}

void run_grouped(GroupedCall& call) {
    const GroupedSizes sizes = check_grouped(call);
    GemmLayouts layouts;
    if (!sizes.is_empty()) layouts = check_grouped_layout(call, sizes);
    const DeviceKind kind = call.operands.d.view.device_kind;
    if (kind != DeviceKind::kCuda) check_stream(call.options.stream);
    if (sizes.is_empty() || kind == DeviceKind::kMeta) return;
    if (kind == DeviceKind::kCpu) return run_on_cpu(call, sizes);
    run_on_gpu(call, sizes, layouts);
}

void launch_grouped_explicit(const LoadedKernel& kernel, GroupedCall& call, int num_sms) {
    const GroupedSizes sizes = check_grouped(call);
    if (sizes.is_empty()) return;
    const GemmLayouts preferred{.a = kernel.problem.a_major, .b = kernel.problem.b_major};
    const GemmLayouts layouts = check_grouped_layout(call, sizes, preferred);
    const TensorView& d = call.operands.d.view;
    check_kernel_device(kernel, d);
    void* stream = parse_stream(call.options.stream, d.ordinal, d.is_described);
    if (sizes.gemm.k == 0) return run_without_k(*kernel.gpu, call.operands, stream);
    const Problem given = make_problem(*kernel.gpu, call, sizes, layouts);
    check_variant(kernel, asked_variant(kernel, given, layouts, call.operands.c.is_present()));
    check_compiled_dims(kernel.problem, sizes.gemm);
    check_kernel_alignment(kernel, given);
    const LaunchGeometry geometry = get_grouped_geometry(sized_variant(kernel, sizes), kernel.config, num_sms,
                                                         kernel.gpu->device.sm_count, kernel.max_clusters);
    launch_complete(call, kernel, geometry, sizes, layouts, num_sms, stream);
}

}  // namespace deep_gemm
