#include "runtime/gemm_op.hpp"

#include <string>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/py_integers.hpp"
#include "runtime/arguments.hpp"
#include "runtime/checks.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/launch.hpp"
#include "runtime/policy.hpp"
#include "runtime/transpose.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// The operand as a tensor in the op's orientation.
py::object tensor_of(const Operand& operand) {
    if (!operand.is_present()) return py::none();
    const py::handle tensor(operand.object);
    return operand.is_transposed ? py::object(tensor.attr("t")()) : py::reinterpret_borrow<py::object>(tensor);
}

const char* recipe_name(Recipe recipe) {
    return recipe == Recipe::k1d1d ? "1d1d" : recipe == Recipe::kPerRow ? "per_row" : "1d2d";
}

// Compute in plain torch; `stream`: None for the current one.
void run_reference(const GemmOperands& operands, const GemmOptions& options, const py::object& stream) {
    py::dict named("a"_a = tensor_of(operands.a), "b"_a = tensor_of(operands.b), "d"_a = tensor_of(operands.d),
                   "c"_a = tensor_of(operands.c), "alpha"_a = options.alpha, "beta"_a = options.beta);
    if (options.op == Op::kFp8Gemm) {
        named["scale_a"] = tensor_of(operands.scale_a), named["scale_b"] = tensor_of(operands.scale_b);
        named["recipe"] = recipe_name(options.recipe);
        if (options.heads.is_given()) named["head_splits"] = py::make_tuple(options.heads.left, options.heads.mid, options.heads.right);
    }
    py::module_::import("deep_gemm.stream").attr("run_reference")(std::string(op_name(options.op)), named, stream);
}

// Of a described tensor nobody can ask torch; it means no current stream.
bool is_current(void* stream, const TensorView& view) { return !view.is_described && stream == current_stream(view.ordinal); }

// D = beta * C, or 0: nothing that needs a kernel of its own.
void run_without_k(const Gpu& gpu, const GemmOperands& operands, const GemmOptions& options, void* stream) {
    const TensorView& d = operands.d.view;
    if (!operands.c.is_present() && !options.heads.is_given()) return launch_zero_fill(gpu, d, stream);
    if (operands.c.is_present() && options.beta == 1.0f && is_same_memory(operands.c.view, d)) return;
    const py::object handle = is_current(stream, d) ? py::none() : py::object(py::int_(reinterpret_cast<uint64_t>(stream)));
    run_reference(operands, options, handle);
}

Problem make_problem(const Gpu& gpu, const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                     const GemmLayouts& layouts) {
    const bool is_limited = get_num_sms() > 0 && get_num_sms() < gpu.device.sm_count;
    const bool is_bf16 = options.op == Op::kBf16Gemm;
    return {.op = options.op,
            .m = sizes.m,
            .n = sizes.n,
            .k = sizes.k,
            .num_sms = is_limited ? get_num_sms() : 0,
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
void launch_with_copies(const DispatchEntry& entry, GemmOperands operands, const GemmOptions& options, const GemmSizes& sizes,
                        const GemmLayouts& layouts, int num_sms, void* stream) {
    const bool is_torch_stream = is_current(stream, operands.a.view);
    py::object memory_a, memory_b;
    for (auto [operand, major, memory] : {std::tuple(&operands.a, layouts.a, &memory_a), std::tuple(&operands.b, layouts.b, &memory_b)}) {
        if (major == Major::kK) continue;
        KMajorCopy copy = make_k_major(*entry.kernel->gpu, *operand, num_sms, stream, is_torch_stream);
        *operand = copy.operand;
        *memory = std::move(copy.memory);
    }
    launch_gemm(*entry.kernel, entry.geometry, operands, sizes, options, stream);
}

void run_on_gpu(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes, const GemmLayouts& layouts) {
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

void check_device(const LoadedKernel& kernel, const TensorView& view) {
    if (view.device_kind == DeviceKind::kCuda && view.ordinal == kernel.gpu->ordinal) return;
    throw Error(ErrorKind::kDevice,
                "a: this kernel is loaded on cuda:" + std::to_string(kernel.gpu->ordinal) + "; pass tensors of that device.");
}

void check_compiled_dims(const Problem& problem, const GemmSizes& sizes) {
    const std::tuple<uint8_t, const char*, int64_t, int64_t> dims[] = {{Problem::kCompileM, "m", problem.m, sizes.m},
                                                                       {Problem::kCompileN, "n", problem.n, sizes.n},
                                                                       {Problem::kCompileK, "k", problem.k, sizes.k}};
    for (const auto& [bit, name, compiled, given] : dims)
        if (problem.compiled_dims & bit && compiled != given)
            throw Error(ErrorKind::kArgument, std::string(name) + " = " + std::to_string(given) + ": this kernel is compiled for " +
                                                  std::to_string(compiled) + "; pass such operands or compile another.");
}

// The variant that the operands ask for, as far as the kernel can take it: any C where it adds one, scales anywhere where its ring
// copies them.
Problem asked_variant(const LoadedKernel& kernel, const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                      const GemmLayouts& layouts) {
    Problem asked = kernel.problem;
    const Problem given = make_problem(*kernel.gpu, operands, options, sizes, layouts);
    asked.op = given.op, asked.recipe = given.recipe, asked.d_dtype = given.d_dtype;
    asked.a_major = layouts.a, asked.b_major = layouts.b;
    const bool takes_any_c = kernel.problem.c_mode == CMode::kGeneral && operands.c.is_present();
    if (!takes_any_c) asked.c_mode = given.c_mode;
    if (kernel.problem.scale_layout != ScaleLayout::kAny) asked.scale_layout = given.scale_layout;
    return asked;
}

void check_variant(const LoadedKernel& kernel, const Problem& asked) {
    if (asked == kernel.problem) return;
    for (const EnumField& field : kProblemEnums) {
        if (field.get(asked) == field.get(kernel.problem)) continue;
        throw Error(ErrorKind::kArgument, std::string(field.name) + " = " + enum_name(field, asked) + ": this kernel was made for " +
                                              enum_name(field, kernel.problem) + "; pass such operands or compile another.");
    }
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
    if (kind == DeviceKind::kCpu) return run_reference(operands, options, py::none());
    run_on_gpu(operands, options, sizes, layouts);
}

void launch_explicit(const LoadedKernel& kernel, const GemmOperands& operands, const GemmOptions& options, int num_sms) {
    const GemmSizes sizes = check_gemm(operands, options);
    if (options.beta == 0.0f && operands.c.is_present())
        throw Error(ErrorKind::kArgument, "beta = 0: an explicit kernel would still read c; pass c=None to a kernel without C.");
    if (sizes.is_empty()) return;
    const GemmLayouts preferred{.a = kernel.problem.a_major, .b = kernel.problem.b_major};
    const GemmLayouts layouts = check_gemm_layout(operands, options, sizes, preferred);
    const TensorView& a = operands.a.view;
    check_device(kernel, a);
    void* stream = parse_stream(options.stream, a.ordinal, a.is_described);
    if (sizes.k == 0) return run_without_k(*kernel.gpu, operands, options, stream);
    check_variant(kernel, asked_variant(kernel, operands, options, sizes, layouts));
    check_compiled_dims(kernel.problem, sizes);
    if (num_sms != 0 && kernel.config.split_k > 1)
        throw Error(ErrorKind::kArgument, "num_sms = " + std::to_string(num_sms) + ": a config with split_k takes all SMs; pass 0.");
    const LaunchGeometry geometry = get_geometry(kernel.config, sizes, num_sms, kernel.gpu->device.sm_count, kernel.max_clusters);
    launch_gemm(kernel, geometry, operands, sizes, options, stream);
}

}  // namespace deep_gemm
