#include "runtime/gemm_op.hpp"

#include <string>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/py_integers.hpp"
#include "runtime/arguments.hpp"
#include "runtime/checks.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/kernel_checks.hpp"
#include "runtime/launch.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"
#include "runtime/transpose.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// Compute in plain torch.
void run_in_torch(const GemmOperands& operands, const GemmOptions& options, const py::object& stream) {
    py::dict named("a"_a = tensor_of(operands.a), "b"_a = tensor_of(operands.b), "d"_a = tensor_of(operands.d),
                   "c"_a = tensor_of(operands.c), "alpha"_a = options.alpha, "beta"_a = options.beta);
    if (options.op == Op::kFp8Gemm) {
        named["scale_a"] = tensor_of(operands.scale_a), named["scale_b"] = tensor_of(operands.scale_b);
        named["recipe"] = recipe_name(options.recipe);
        if (options.heads.is_given())
            named["head_splits"] = py::make_tuple(options.heads.left, options.heads.mid, options.heads.right);
    }
    run_reference(options.op, named, stream);
}

// D = beta * C, or 0: nothing that needs a kernel of its own.
void run_without_k(const Gpu& gpu, const GemmOperands& operands, const GemmOptions& options, void* stream) {
    const TensorView& d = operands.d.view;
    if (!operands.c.is_present() && !options.heads.is_given()) return launch_zero_fill(gpu, d, stream);
    if (operands.c.is_present() && options.beta == 1.0f && is_same_memory(operands.c.view, d)) return;
    run_in_torch(operands, options, stream_handle(stream, d));
}

Problem make_problem(const Gpu& gpu, const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                     const GemmLayouts& layouts) {
    const bool is_bf16 = options.op == Op::kBf16Gemm;
    return {.op = options.op,
            .m = sizes.m,
            .n = sizes.n,
            .k = sizes.k,
            .num_sms = get_sm_limit(gpu.device.sm_count),
            .compiled_dims = options.compiled_dims,
            .recipe = options.recipe,
            .d_dtype = operands.d.view.dtype == Dtype::kFloat32 ? DDtype::kFp32 : DDtype::kBf16,
            .c_mode = layouts.c,
            .a_major = is_bf16 ? layouts.a : Major::kK,
            .b_major = is_bf16 ? layouts.b : Major::kK,
            .scale_layout = layouts.scales,
            .batch_invariant = is_batch_invariant()};
}

// The copies keep to the SMs of the problem, as the product does.
void launch_with_copies(const DispatchEntry& entry, GemmOperands operands, const GemmOptions& options,
                        const GemmSizes& sizes, const GemmLayouts& layouts, int num_sms, void* stream) {
    const py::object handle = stream_handle(stream, operands.a.view);
    py::object memory_a, memory_b;
    for (auto [operand, major, memory] :
         {std::tuple(&operands.a, layouts.a, &memory_a), std::tuple(&operands.b, layouts.b, &memory_b)}) {
        if (major == Major::kK) continue;
        KMajorCopy copy = make_k_major(*entry.kernel->gpu, *operand, num_sms, stream, handle);
        *operand = copy.operand;
        *memory = std::move(copy.memory);
    }
    launch_gemm(*entry.kernel, entry.geometry, operands, sizes, options, stream);
}

void run_on_gpu(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                const GemmLayouts& layouts) {
    const TensorView& a = operands.a.view;
    const Gpu& gpu = get_supported_gpu(a.ordinal);
    void* stream = parse_stream(options.stream, a.ordinal, a.is_described);
    if (sizes.k == 0) return run_without_k(gpu, operands, options, stream);
    const Problem problem = make_problem(gpu, operands, options, sizes, layouts);
    const DispatchEntry entry = get_dispatch_entry(gpu, problem);
    const bool needs_copies = options.op == Op::kFp8Gemm && (layouts.a == Major::kMn || layouts.b == Major::kMn);
    if (needs_copies) return launch_with_copies(entry, operands, options, sizes, layouts, problem.num_sms, stream);
    launch_gemm(*entry.kernel, entry.geometry, operands, sizes, options, stream);
}

}  // namespace

Operand make_oriented_operand(const char* name, PyObject* object, bool is_transposed) {
    Operand operand = make_operand(name, object);
    return is_transposed ? transposed(operand) : operand;
}

Operand make_c(PyObject* object, const Operand& d) {
    if (!is_given(object)) return {};
    return object == d.object ? Operand{"c", object, d.view, false} : make_operand("c", object);
}

py::tuple parse_pair(const char* name, PyObject* object) {
    const bool is_sequence = PyTuple_Check(object) || PyList_Check(object);
    if (!is_sequence || PySequence_Size(object) != 2)
        throw Error(ErrorKind::kArgument, std::string(name) + " = " + short_repr(py::type::of(object)) +
                                              ": FP8 operands are pairs (data, scales); pass such a tuple.");
    py::tuple pair = py::reinterpret_steal<py::tuple>(PySequence_Tuple(object));
    if (!pair) throw py::error_already_set();
    return pair;
}

Recipe choose_recipe(std::optional<Recipe> given, const Operand& scale_a, const Operand& scale_b) {
    if (given) return *given;
    return scale_a.view.rank == 1 && scale_b.view.rank == 1 ? Recipe::kPerRow : Recipe::k1d2d;
}

void run_gemm(GemmOperands operands, const GemmOptions& options) {
    const GemmSizes sizes = check_gemm(operands, options);
    if (options.beta == 0.0f) operands.c = {};
    GemmLayouts layouts;
    if (!sizes.is_empty()) layouts = check_gemm_layout(operands, options, sizes);
    const DeviceKind kind = operands.a.view.device_kind;
    if (kind != DeviceKind::kCuda) check_stream(options.stream);
    if (sizes.is_empty() || kind == DeviceKind::kMeta) return;
    if (kind == DeviceKind::kCpu) return run_in_torch(operands, options, py::none());
    run_on_gpu(operands, options, sizes, layouts);
}

void launch_explicit(const LoadedKernel& kernel, const GemmOperands& operands, const GemmOptions& options,
                     int num_sms) {
    const GemmSizes sizes = check_gemm(operands, options);
    if (options.beta == 0.0f && operands.c.is_present())
        throw Error(ErrorKind::kArgument,
                    "beta = 0: an explicit kernel would still read c; pass c=None to a kernel without C.");
    if (sizes.is_empty()) return;
    const GemmLayouts preferred{.a = kernel.problem.a_major, .b = kernel.problem.b_major};
    const GemmLayouts layouts = check_gemm_layout(operands, options, sizes, preferred);
    const TensorView& a = operands.a.view;
    check_kernel_device(kernel, a);
    void* stream = parse_stream(options.stream, a.ordinal, a.is_described);
    if (sizes.k == 0) return run_without_k(*kernel.gpu, operands, options, stream);
    const Problem given = make_problem(*kernel.gpu, operands, options, sizes, layouts);
    check_variant(kernel, asked_variant(kernel, given, layouts, operands.c.is_present()));
    check_compiled_dims(kernel.problem, sizes);
    if (num_sms != 0 && kernel.config.split_k > 1)
        throw Error(ErrorKind::kArgument,
                    "num_sms = " + std::to_string(num_sms) + ": a config with split_k takes all SMs; pass 0.");
    const LaunchGeometry geometry =
        get_geometry(kernel.config, sizes, num_sms, kernel.gpu->device.sm_count, kernel.max_clusters);
    launch_gemm(kernel, geometry, operands, sizes, options, stream);
}

}  // namespace deep_gemm
