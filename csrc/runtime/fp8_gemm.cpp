#include "runtime/fp8_gemm.hpp"

#include <pybind11/pybind11.h>

#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/py_integers.hpp"
#include "module.hpp"
#include "runtime/arguments.hpp"
#include "runtime/checks.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/launch.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

int num_sms_limit = 0;

enum Slot { kA, kB, kD, kC, kRecipe, kCompiledDims, kDisableUe8m0Cast, kAlpha, kBeta, kStream, kNumSlots };
constexpr const char* kNames[kNumSlots] = {"a", "b", "d", "c", "recipe", "compiled_dims", "disable_ue8m0_cast", "alpha", "beta", "stream"};
constexpr Signature kSignature{"fp8_gemm_nt", kNames, kNumSlots, kC, kAlpha};

// A pair (data, scales); a list is copied, so that nobody can empty it while the call looks at it.
py::tuple parse_pair(const char* name, PyObject* object) {
    const bool is_sequence = PyTuple_Check(object) || PyList_Check(object);
    if (!is_sequence || PySequence_Size(object) != 2)
        throw Error(ErrorKind::kArgument, std::string(name) + " = " + short_repr(py::type::of(object)) +
                                              ": FP8 operands are pairs (data, scales); pass such a tuple.");
    py::tuple pair = py::reinterpret_steal<py::tuple>(PySequence_Tuple(object));
    if (!pair) throw py::error_already_set();
    return pair;
}

// The pairs are kept alive with the views into them.
struct Arguments {
    py::tuple a, b;
    Fp8GemmOperands operands;
    float alpha;
    uint8_t compiled_dims;
    PyObject* stream;
};

void check_no_c(PyObject* c) {
    if (is_given(c)) throw Error(ErrorKind::kArgument, "c: accumulation is not available for this op yet; add C after the call.");
}

Arguments parse(PyObject* const* slots) {
    const py::tuple a = parse_pair("a", slots[kA]), b = parse_pair("b", slots[kB]);
    check_no_c(slots[kC]);
    check_recipe_1d2d(slots[kRecipe]);
    check_flag("disable_ue8m0_cast", slots[kDisableUe8m0Cast]);
    parse_factor("beta", slots[kBeta]);  // multiplies a C that is absent
    const float alpha = parse_factor("alpha", slots[kAlpha]);
    const uint8_t compiled_dims = parse_compiled_dims_argument(slots[kCompiledDims]);
    PyObject* const a_items[] = {PyTuple_GET_ITEM(a.ptr(), 0), PyTuple_GET_ITEM(a.ptr(), 1)};
    PyObject* const b_items[] = {PyTuple_GET_ITEM(b.ptr(), 0), PyTuple_GET_ITEM(b.ptr(), 1)};
    return {a,
            b,
            {make_operand("a", a_items[0]), make_operand("scale_a", a_items[1]), make_operand("b", b_items[0]),
             make_operand("scale_b", b_items[1]), make_operand("d", slots[kD])},
            alpha,
            compiled_dims,
            slots[kStream]};
}

void run_reference(const Fp8GemmOperands& operands, float alpha) {
    const auto object = [](const Operand& operand) { return py::handle(operand.object); };
    py::module_::import("deep_gemm.reference")
        .attr("fp8_gemm_nt")(object(operands.a), object(operands.scale_a), object(operands.b), object(operands.scale_b), object(operands.d),
                             alpha);
}

void run_on_gpu(const Arguments& arguments, const GemmSizes& sizes) {
    const TensorView& a = arguments.operands.a.view;
    const Gpu& gpu = get_supported_gpu(a.ordinal);
    void* stream = parse_stream(arguments.stream, a.ordinal, a.is_described);
    if (sizes.k == 0) return launch_zero_fill(gpu, arguments.operands.d.view, stream);
    const bool is_limited = num_sms_limit > 0 && num_sms_limit < gpu.device.sm_count;
    const Problem problem{.op = Op::kFp8Gemm,
                          .m = sizes.m,
                          .n = sizes.n,
                          .k = sizes.k,
                          .num_sms = is_limited ? num_sms_limit : 0,
                          .compiled_dims = arguments.compiled_dims};
    const DispatchEntry entry = get_dispatch_entry(gpu, problem);
    launch_fp8_gemm(*entry.kernel, entry.geometry, arguments.operands, sizes, arguments.alpha, stream);
}

void run(const Arguments& arguments) {
    const GemmSizes sizes = check_fp8_gemm(arguments.operands);
    if (!sizes.is_empty()) check_fp8_gemm_layout(arguments.operands, sizes);
    const DeviceKind kind = arguments.operands.a.view.device_kind;
    if (kind != DeviceKind::kCuda) check_stream(arguments.stream);
    if (sizes.is_empty() || kind == DeviceKind::kMeta) return;
    if (kind == DeviceKind::kCpu) return run_reference(arguments.operands, arguments.alpha);
    run_on_gpu(arguments, sizes);
}

// Run `body` and turn what it throws into a Python error.
template <class Body>
PyObject* guarded(const Body& body) {
    try {
        body();
        Py_RETURN_NONE;
    } catch (const Error& error) {
        set_python_error(error);
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject* fp8_gemm_nt(PyObject*, PyObject* const* values, Py_ssize_t num_positional, PyObject* keyword_names) {
    return guarded([&] {
        PyObject* slots[kNumSlots] = {};
        bind_arguments(kSignature, values, num_positional, keyword_names, slots);
        run(parse(slots));
    });
}

constexpr const char* kDocumentation =
    R"(fp8_gemm_nt(a, b, d, c=None, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, alpha=1.0, beta=1.0, stream=None)
--

Compute d = alpha * (A @ B.T) from block-scaled FP8 operands, on the current stream.

    d[i, j] = alpha * sum over K of A[i, k] * scale_a[i, k // 128] * B[j, k] * scale_b[j // 128, k // 128]

Partial sums over 128 of K are promoted into FP32; the result is rounded to BF16 once. CPU tensors run the reference.
Call it once before capturing a CUDA graph.

Args:
    a: pair (A, scale_a): A float8_e4m3fn [m, k], scale_a float32 [m, ceil(k / 128)] of any strides.
    b: pair (B, scale_b): B float8_e4m3fn [n, k], scale_b float32 [ceil(n / 128), ceil(k / 128)] of any strides.
    d: bfloat16 [m, n], written; shares no memory with the operands.
    c: must be None: this op does not accumulate yet.
    recipe: granularity of the scales, None or (1, 128, 128).
    compiled_dims: subset of 'mnk' that become constants of the kernel; None lets the library decide.
    disable_ue8m0_cast: accepted for compatibility; scales stay FP32 on SM90.
    alpha: finite factor. beta: factor of c, so without effect.
    stream: torch.cuda.Stream or raw handle to launch on instead of the current stream.

Rows of A, B and D are contiguous and start 16-byte aligned, at a pitch that is a multiple of 16 bytes (slices of wider
tensors are right). The stride of a dimension of size 1 is ignored. m = 0 or n = 0: nothing happens. k = 0: d becomes 0.

Raises:
    ArgumentError: not a tensor, a missing or unsupported argument, an input that requires grad while grad mode is on.
    DtypeError, ShapeError, LayoutError: an operand of the wrong dtype, rank or size, strides, alignment or overlap.
    DeviceError: operands on several devices, no driver, or a GPU other than SM90.
    CompileError, LaunchError: the kernel could not be compiled, loaded or launched.)";

}  // namespace

PyMethodDef fp8_gemm_nt_method = {"fp8_gemm_nt", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&fp8_gemm_nt)),
                                  METH_FASTCALL | METH_KEYWORDS, kDocumentation};

void launch_explicit(const LoadedKernel& kernel, const ExplicitLaunch& launch) {
    const Fp8GemmOperands operands{make_operand("a", launch.a), make_operand("scale_a", launch.scale_a), make_operand("b", launch.b),
                                   make_operand("scale_b", launch.scale_b), make_operand("d", launch.d)};
    const GemmSizes sizes = check_fp8_gemm(operands);
    if (sizes.is_empty()) return;
    check_fp8_gemm_layout(operands, sizes);
    const TensorView& a = operands.a.view;
    if (a.device_kind != DeviceKind::kCuda || a.ordinal != kernel.gpu->ordinal)
        throw Error(ErrorKind::kDevice,
                    "a: this kernel is loaded on cuda:" + std::to_string(kernel.gpu->ordinal) + "; pass tensors of that device.");
    void* stream = parse_stream(launch.stream, a.ordinal, a.is_described);
    if (sizes.k == 0) return launch_zero_fill(*kernel.gpu, operands.d.view, stream);
    const LaunchGeometry geometry = get_geometry(kernel.config, sizes, launch.num_sms, kernel.gpu->device.sm_count, kernel.max_clusters);
    launch_fp8_gemm(kernel, geometry, operands, sizes, launch.alpha, stream);
}

int get_num_sms() { return num_sms_limit; }

void set_num_sms(int num_sms) {
    if (num_sms < 0 || num_sms > Problem::kMaxSms)
        throw Error(ErrorKind::kArgument, "num_sms = " + std::to_string(num_sms) + ": must be within 0.." +
                                              std::to_string(Problem::kMaxSms) + "; 0 means all SMs of the device.");
    num_sms_limit = num_sms;
}

}  // namespace deep_gemm
