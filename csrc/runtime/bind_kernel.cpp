// The Python face of one loaded kernel and its launch on given operands.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/second_tile.hpp"
#include "runtime/arguments.hpp"
#include "runtime/bind_runtime.hpp"
#include "runtime/kernel.hpp"
#include "runtime/logits.hpp"
#include "runtime/op.hpp"
#include "runtime/run.hpp"
#include "runtime/tensor_view.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {

// A kernel stays loaded when this handle goes; see load_kernel.
struct KernelHandle {
    const LoadedKernel* kernel;
};

namespace {

KernelHandle make_kernel(const py::bytes& cubin, const std::string& name, const Problem& problem, const Config& config,
                         const py::object& device, const std::optional<Config>& second) {
    const Gpu& gpu = get_supported_gpu(parse_ordinal(device.ptr()));
    try {
        return {&load_kernel(gpu, problem, config, second, cubin, name)};
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch, "config = " + name_tiles(config, second) + ": " + error.what() +
                                            "; compile it for " + gpu.device.name + ".");
    } catch (const UnplacedCluster& error) {
        throw Error(ErrorKind::kLaunch, std::string(error.what()) + "; use a config with clusters of one CTA.");
    }
}

[[noreturn]] void fail_argument(const char* message) { throw Error(ErrorKind::kArgument, message); }

Operand optional_operand(const char* name, const py::object& object) {
    return object.is_none() ? Operand{} : make_operand(name, object.ptr());
}

void check_operands_given(Op op, const py::object& scale_a, const py::object& scale_b, const py::object& groups) {
    if (groups.is_none() == op_kind(op).reads_groups())
        fail_argument(
            "groups: a kernel of groups that an operand bounds takes m_indices, masked_m or ks_tensor, others none; "
            "pass it accordingly.");
    if (scale_a.is_none() != scale_b.is_none() || scale_a.is_none() == is_fp8(op))
        fail_argument("scale_a, scale_b: an FP8 kernel takes both, a BF16 kernel neither; pass them accordingly.");
}

void launch_kernel(const KernelHandle& self, const py::object& a, const py::object& scale_a, const py::object& b,
                   const py::object& scale_b, const py::object& d, const py::object& c, const py::object& groups,
                   const py::object& num_sms, const py::object& alpha, const py::object& beta,
                   const py::object& head_splits, bool ensure_zero_padding, const py::object& signal,
                   const py::object& stream) {
    const Problem& problem = self.kernel->problem;
    if (op_kind(problem.op).is_logits()) fail_argument("launch: the kernel is of attention logits; use launch_logits.");
    check_operands_given(problem.op, scale_a, scale_b, groups);
    Call call = make_call(problem.op);
    call.recipe = problem.recipe, call.group_layout = problem.group_layout;
    call.a = make_operand("a", a.ptr()), call.b = make_operand("b", b.ptr());
    call.scale_a = optional_operand("scale_a", scale_a), call.scale_b = optional_operand("scale_b", scale_b);
    call.d = make_operand("d", d.ptr()), call.c = optional_operand("c", c);
    call.groups = optional_operand("groups", groups), call.signal = optional_operand("signal", signal);
    call.alpha = parse_factor("alpha", alpha.ptr()), call.beta = parse_factor("beta", beta.ptr());
    if (!head_splits.is_none()) call.heads = parse_head_splits(head_splits.ptr());
    call.stream = stream.ptr(), call.ensures_zero_padding = ensure_zero_padding;
    if (is_grouped(problem.op) && (call.alpha != 1.0f || call.beta != 1.0f || call.heads.is_given()))
        fail_argument("alpha, beta, head_splits: a grouped kernel takes none of them; leave them out.");
    launch_explicit(*self.kernel, call, parse_num_sms(num_sms.ptr()));
}

void launch_logits_kernel(const KernelHandle& self, const py::object& q, const py::object& kv,
                          const py::object& scale_kv, const py::object& weights, const py::object& first,
                          const py::object& second, const py::object& d, const py::object& schedule, bool is_clean,
                          bool is_compressed, const py::object& num_sms, const py::object& stream) {
    const Problem& problem = self.kernel->problem;
    if (!op_kind(problem.op).is_logits()) fail_argument("launch_logits: the kernel is a product's; use launch.");
    if (schedule.is_none() == op_kind(problem.op).is_paged() || scale_kv.is_none() != op_kind(problem.op).is_paged())
        fail_argument("schedule, scale_kv: a kernel of pages takes a schedule, others scales; pass them accordingly.");
    LogitsOperands logits;
    Call call = make_call(problem.op);
    call.logits = &logits;
    call.a = make_operand("q", q.ptr()), call.b = make_operand("kv", kv.ptr());
    call.scale_a = make_operand("weights", weights.ptr()), call.scale_b = optional_operand("scale_kv", scale_kv);
    logits.first = make_operand("first", first.ptr()), logits.second = make_operand("second", second.ptr());
    logits.schedule = optional_operand("schedule", schedule);
    call.d = make_operand("d", d.ptr());
    logits.columns = call.d.view.rank == 2 ? call.d.view.shape[1] : 0;
    logits.is_clean = is_clean, logits.is_compressed = is_compressed;
    call.stream = stream.ptr();
    launch_explicit(*self.kernel, call, parse_num_sms(num_sms.ptr()));
}

TensorView make_view(uint64_t address, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                     const std::string& dtype, int device) {
    if (shape.size() != strides.size() || shape.size() > kMaxRank)
        throw Error(ErrorKind::kShape, "shape: must have as many entries as strides, at most " +
                                           std::to_string(kMaxRank) + "; describe each dim once.");
    TensorView view{.address = address,
                    .rank = int(shape.size()),
                    .dtype = parse_dtype(dtype),
                    .device_kind = DeviceKind::kCuda,
                    .ordinal = device,
                    .is_described = true};
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    std::copy(strides.begin(), strides.end(), view.strides.begin());
    return view;
}

}  // namespace

const TensorView* find_described(PyObject* object) {
    py::detail::make_caster<TensorView> caster;
    return caster.load(object, false) ? &static_cast<const TensorView&>(caster) : nullptr;
}

void bind_kernel(py::module_& m) {
    py::class_<TensorView>(m, "TensorView",
                           "Device memory described by numbers; accepted where a CUDA tensor is. The caller keeps the "
                           "memory valid, and without `stream=` launches go to the legacy default stream.")
        .def(
            py::init(&make_view), "address"_a, "shape"_a, "strides"_a, "dtype"_a, "device"_a = 0,
            "Describe a tensor: strides in elements, a dtype such as 'float8_e4m3fn', the CUDA ordinal of the device.");
    py::class_<KernelHandle>(m, "Kernel", "A compiled kernel, loaded on one GPU for the life of the process.")
        .def(py::init(&make_kernel), "cubin"_a, "name"_a, "problem"_a, "config"_a, "device"_a = 0,
             "second"_a = py::none(),
             "Load `cubin`, made for `problem` (its variant and compiled dims), `config` and a `second` tile, of which "
             "and `config` a launch takes one by the rows of masked groups (None: one tile), on CUDA device `device`. "
             "Launched by itself, the kernel weighs them as if all room were expected to be filled. Raises: "
             "ConfigError, DeviceError, LaunchError.")
        .def(
            "launch", &launch_kernel, "a"_a, "scale_a"_a, "b"_a, "scale_b"_a, "d"_a, "c"_a = py::none(), py::kw_only(),
            "groups"_a = py::none(), "num_sms"_a = 0, "alpha"_a = 1.0, "beta"_a = 1.0, "head_splits"_a = py::none(),
            "ensure_zero_padding"_a = false, "signal"_a = py::none(), "stream"_a = py::none(),
            "Launch on A [m, k] and B [n, k] (views of any major that the kernel takes), past selection; the rest is "
            "as for fp8_gemm_nt. Scales are None for BF16, num_sms 0 means all SMs, stream None the current one. A "
            "grouped kernel takes m_indices, masked_m, ks_tensor or ends as `groups` and the operands of its op, each "
            "as [m, k] or [n, k] of every group (1-D where groups of K are blocks). `ensure_zero_padding` is for "
            "groups of rows with ends, `signal` for kernels of Problem.with_signals.\n\n"
            "Raises: the errors of fp8_gemm_nt; ArgumentError where the operands are not what the kernel was made for.")
        .def("launch_logits", &launch_logits_kernel, "q"_a, "kv"_a, "scale_kv"_a, "weights"_a, "first"_a, "second"_a,
             "d"_a, py::kw_only(), "schedule"_a = py::none(), "is_clean"_a = false, "is_compressed"_a = false,
             "num_sms"_a = 0, "stream"_a = py::none(),
             "Launch a kernel of attention logits into d [tokens, columns], past selection. Operands are those of "
             "fp8_mqa_logits, first and second its ranges, or of fp8_paged_mqa_logits, first and second its lengths "
             "and block table, and scale_kv None.\n\n"
             "Raises: the errors of these functions; ArgumentError where the operands are not what the kernel was made "
             "for.")
        .def_property_readonly(
            "problem", [](const KernelHandle& self) { return self.kernel->problem; },
            "The variant and the compiled dims; sizes that are not compiled in are 1.")
        .def_property_readonly("config", [](const KernelHandle& self) { return self.kernel->config; })
        .def_property_readonly("second", [](const KernelHandle& self) { return self.kernel->second; })
        .def_property_readonly(
            "local_bytes", [](const KernelHandle& self) { return self.kernel->local_bytes; },
            "Bytes of local memory per thread; 0 unless it spills.")
        .def_property_readonly(
            "max_clusters", [](const KernelHandle& self) { return self.kernel->max_clusters; },
            "Clusters that the GPU holds at once; 0 for clusters of one CTA.");
}

}  // namespace deep_gemm
