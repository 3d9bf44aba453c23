#include "runtime/run.hpp"

#include <array>
#include <cstdlib>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "runtime/arguments.hpp"
#include "runtime/checks.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/family.hpp"
#include "runtime/kernel_checks.hpp"
#include "runtime/launch.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/plan.hpp"
#include "runtime/policy.hpp"
#include "runtime/scale_copy.hpp"
#include "runtime/signals.hpp"
#include "runtime/sum_parts.hpp"
#include "runtime/torch_calls.hpp"
#include "runtime/transpose.hpp"

namespace deep_gemm {
namespace {

Problem make_product_problem(int sm_count, const Call& call, const Sizes& sizes, const Layouts& layouts) {
    // The kernel of a sum leaves parts in FP32, and another one adds them up (sum_parts.hpp).
    const bool is_bf16 = !is_fp8(call.op), is_summed = op_kind(call.op).is_summed();
    Problem problem{.op = call.op,
                    .m = sizes.m,
                    .n = sizes.n,
                    .k = sizes.k,
                    .num_sms = get_sm_limit(sm_count),
                    .num_groups = is_grouped(call.op) ? int32_t(sizes.num_groups) : 0,
                    .alignment = call.alignment,
                    .compiled_dims = call.compiled_dims,
                    .recipe = call.recipe,
                    .d_dtype = is_summed || call.d.view.dtype == Dtype::kFloat32 ? DDtype::kFp32 : DDtype::kBf16,
                    .c_mode = is_summed ? CMode::kNone : layouts.c,
                    .a_major = is_bf16 ? layouts.a : Major::kK,
                    .b_major = is_bf16 ? layouts.b : Major::kK,
                    .scale_layout = layouts.scales,
                    .group_layout = call.group_layout,
                    .batch_invariant = is_batch_invariant(op_kind(call.op)),
                    .has_signals = call.signal.is_present()};
    if (call.expected_m) problem.expected_m = hold_expected_m(problem, *call.expected_m);
    return problem;
}

Reference name_operands(const Call& call) {
    Reference named = Reference::take(PyDict_New());
    set_item(named.get(), "a", tensor_of(call.a));
    set_item(named.get(), "b", tensor_of(call.b));
    set_item(named.get(), "d", tensor_of(call.d));
    if (is_fp8(call.op)) {
        set_item(named.get(), "scale_a", tensor_of(call.scale_a));
        set_item(named.get(), "scale_b", tensor_of(call.scale_b));
    }
    family_of(call.op).add_reference_arguments(call, named.get());
    return named;
}

void run_in_torch(const Call& call, PyObject* stream) { run_reference(call.op, name_operands(call).get(), stream); }

// What a kernel adds to the signals, where none has run.
void add_signals_in_torch(const Call& call, const Sizes& sizes, PyObject* stream) {
    if (call.signal.is_present())
        add_signals(call.signal, call.groups, sizes.m, kSignalRows, signal_threshold(sizes.n), stream);
}

void run_product_on_cpu(const Call& call, const Sizes& sizes) {
    const Family& family = family_of(call.op);
    if (family.check_values != nullptr) family.check_values(call, sizes);
    run_in_torch(call, Py_None);
    add_signals_in_torch(call, sizes, Py_None);
}

// D = beta * C, or 0: nothing that needs a kernel of its own.
void write_without_k(const Gpu& gpu, const Call& call, void* stream) {
    const TensorView& d = call.d.view;
    if (!call.c.is_present() && !call.heads.is_given()) return launch_zero_fill(gpu, d, stream);
    const bool is_copy = call.c.is_present() && call.beta == 1.0f;
    if (is_copy && is_same_memory(call.c.view, d)) return;
    const Reference handle = stream_handle(stream, d);
    is_copy ? copy_matrices(call.d, call.c, handle.get()) : run_in_torch(call, handle.get());
}

void run_without_k(const Gpu& gpu, const Call& call, const Sizes& sizes, void* stream) {
    write_without_k(gpu, call, stream);
    if (call.signal.is_present()) add_signals_in_torch(call, sizes, stream_handle(stream, call.d.view).get());
}

// Memory that must live until the call is enqueued.
struct CallMemory {
    KMajorMemory copies;
    ScaleMemory scales;
    Reference groups, map_slots;
};

// Copy FP8 operands that are not K-major; the copies keep to the SMs of the problem, as the product does.
void copy_to_k_major(const Gpu& gpu, Call& call, const Layouts& layouts, int num_sms, void* stream,
                     CallMemory& memory) {
    std::array<Operand*, 2> operands;
    size_t count = 0;
    if (layouts.a == Major::kMn) operands[count++] = &call.a;
    if (layouts.b == Major::kMn) operands[count++] = &call.b;
    const Reference handle = stream_handle(stream, call.a.view);
    memory.copies = make_k_major(gpu, {operands.data(), count}, num_sms, stream, handle.get());
}

void fill_in_groups(Call& call, void* stream, CallMemory& memory) {
    const TensorView& d = call.d.view;
    memory.groups = make_ks_tensor(*call.ks, d.ordinal, stream_handle(stream, d).get());
    call.groups = make_operand("ks_tensor", memory.groups.get());
}

// The address of room for the tensor maps of groups.
uint64_t make_map_slots(const Call& call, const LoadedKernel& kernel, const LaunchGeometry& geometry, void* stream,
                        CallMemory& memory) {
    const TensorView& d = call.d.view;
    const int64_t bytes = map_slots_bytes(kernel.config, geometry);
    memory.map_slots = empty_fp8(1, bytes, d.ordinal, stream_handle(stream, d).get());
    return make_operand("map_slots", memory.map_slots.get()).view.address;
}

void launch_product(const LoadedKernel& kernel, const LaunchGeometry& geometry, Call& call, const Sizes& sizes,
                    const Layouts& layouts, int num_sms, void* stream) {
    CallMemory memory;
    uint64_t map_slots = 0;
    if (call.ks && !call.groups.is_present()) fill_in_groups(call, stream, memory);
    if (call.needs_group_maps()) map_slots = make_map_slots(call, kernel, geometry, stream, memory);
    const bool needs_copies = layouts.a == Major::kMn || layouts.b == Major::kMn;
    if (needs_copies && is_fp8(call.op)) copy_to_k_major(*kernel.gpu, call, layouts, num_sms, stream, memory);
    if (needs_scale_copies(call, layouts))
        memory.scales = copy_scales(*kernel.gpu, call, stream, stream_handle(stream, call.a.view).get());
    if (op_kind(call.op).is_summed()) return launch_summed(kernel, geometry, call, sizes, num_sms, stream);
    launch(kernel, geometry, call, sizes, map_slots, stream);
}

// What launch_product would need, without running it.
void load_passes(const Gpu& gpu, const LaunchGeometry& geometry, const Call& call, const Layouts& layouts) {
    if (is_fp8(call.op) && (layouts.a == Major::kMn || layouts.b == Major::kMn)) load_transpose_kernel(gpu);
    if (op_kind(call.op).is_summed()) load_sum_kernel(gpu, geometry.is_small_sum, sum_variant(call));
}

// Record the problem that the caller has given, of any number of SMs that no limit reaches.
void record(const Steps& steps, const Call& call, const Sizes& sizes, const Layouts& layouts) {
    const char* path = std::getenv("DG_RECORD_SHAPES");
    if (path == nullptr || *path == '\0' || sizes.k == 0 || call.use_vendor) return;
    record_problem(steps.make_problem(std::numeric_limits<int>::max(), call, sizes, layouts));
}

void run_on_gpu(const Steps& steps, Call& call, const Sizes& sizes, const Layouts& given) {
    const TensorView& d = call.d.view;
    const Gpu& gpu = get_supported_gpu(d.ordinal);
    void* stream = parse_stream(call.stream, d.ordinal, d.is_described);
    const bool is_run = !get_compile_mode();
    if (sizes.k == 0) return is_run ? run_without_k(gpu, call, sizes, stream) : void();
    if (call.use_vendor)
        return is_run ? run_vendor(call.op, name_operands(call).get(), stream_handle(stream, d).get()) : void();
    const Layouts layouts = with_scale_copies(gpu, call, sizes, given);
    if (needs_scale_copies(call, layouts)) record(steps, call, sizes, given);
    const Problem problem = steps.make_problem(gpu.device.sm_count, call, sizes, layouts);
    const DispatchEntry entry = get_dispatch_entry(gpu, problem);
    if (!is_run) [[unlikely]]
        return load_passes(gpu, entry.geometry, call, layouts);
    steps.launch(*entry.kernel, entry.geometry, call, sizes, layouts, problem.num_sms, stream);
}

// The kernel's variant, which may take more than the operands ask for, with their sizes and alignment.
Problem sized_variant(const LoadedKernel& kernel, const Problem& given) {
    Problem problem = kernel.problem;
    problem.m = given.m, problem.n = given.n, problem.k = given.k;
    problem.num_groups = given.num_groups, problem.alignment = given.alignment;
    return problem;
}

}  // namespace

const Steps kProductSteps{.check_operands = &check_operands,
                          .check_layout = &check_layout,
                          .make_result = nullptr,
                          .run_on_cpu = &run_product_on_cpu,
                          .make_problem = &make_product_problem,
                          .launch = &launch_product};

void run(Call& call) {
    const Steps& steps = *family_of(call.op).steps;
    const Sizes sizes = steps.check_operands(call);
    if (call.beta == 0.0f) call.c = {};
    Layouts layouts;
    if (!sizes.is_empty()) layouts = steps.check_layout(call, sizes, {});
    if (steps.make_result != nullptr) steps.make_result(call, sizes);
    const DeviceKind kind = call.d.view.device_kind;
    if (kind != DeviceKind::kCuda) check_stream(call.stream);
    if (sizes.is_empty() || kind == DeviceKind::kMeta) return;
    if (kind == DeviceKind::kCpu) {
        record(steps, call, sizes, layouts);
        return get_compile_mode() ? void() : steps.run_on_cpu(call, sizes);
    }
    run_on_gpu(steps, call, sizes, layouts);
}

void launch_explicit(const LoadedKernel& kernel, Call& call, int num_sms) {
    const Steps& steps = *family_of(call.op).steps;
    const Sizes sizes = steps.check_operands(call);
    if (call.beta == 0.0f && call.c.is_present())
        throw Error(ErrorKind::kArgument,
                    "beta = 0: an explicit kernel would still read c; pass c=None to a kernel without C.");
    if (sizes.is_empty()) return;
    const Layouts layouts = steps.check_layout(call, sizes, {.a = kernel.problem.a_major, .b = kernel.problem.b_major});
    const TensorView& d = call.d.view;
    check_kernel_device(kernel, d);
    void* stream = parse_stream(call.stream, d.ordinal, d.is_described);
    if (sizes.k == 0) return run_without_k(*kernel.gpu, call, sizes, stream);
    const Problem given = steps.make_problem(kernel.gpu->device.sm_count, call, sizes, layouts);
    check_variant(kernel, given, layouts, call.c.is_present());
    check_compiled_dims(kernel.problem, sizes);
    check_kernel_alignment(kernel, given);
    check_kernel_sms(kernel, num_sms);
    const LaunchGeometry geometry = get_kernel_geometry(sized_variant(kernel, given), kernel, num_sms);
    steps.launch(kernel, geometry, call, sizes, layouts, num_sms, stream);
}

}  // namespace deep_gemm
