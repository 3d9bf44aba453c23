// The Python faces of driver, kernels, dispatch and the ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <span>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/py_integers.hpp"
#include "module.hpp"
#include "runtime/arguments.hpp"
#include "runtime/bf16_gemm.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/fp8_gemm.hpp"
#include "runtime/gemm_op.hpp"
#include "runtime/gpu.hpp"
#include "runtime/grouped_launch.hpp"
#include "runtime/grouped_op.hpp"
#include "runtime/k_grouped_gemm.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"
#include "runtime/m_grouped_gemm.hpp"
#include "runtime/policy.hpp"
#include "runtime/tensor_view.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// A kernel stays loaded when this handle goes; see load_kernel.
struct KernelHandle {
    const LoadedKernel* kernel;
};

constexpr IntegerField kNumSmsField{"num_sms", 0, Problem::kMaxSms, 0, false};
constexpr IntegerField kAlignmentField{"alignment", Problem::kAlignmentUnit, Problem::kMaxAlignment, 0, false};
constexpr IntegerField kOrdinalField{"device", 0, 65535, 0, false};

int parse_num_sms(const py::object& num_sms) {
    return int(checked_integer(num_sms, kNumSmsField, ErrorKind::kArgument));
}

int parse_alignment(const py::object& alignment) {
    return int(checked_integer(alignment, kAlignmentField, ErrorKind::kArgument));
}

int parse_ordinal(const py::object& ordinal) {
    return ordinal.is_none() ? current_ordinal() : int(checked_integer(ordinal, kOrdinalField, ErrorKind::kArgument));
}

KernelHandle make_kernel(const py::bytes& cubin, const std::string& name, const Problem& problem, const Config& config,
                         const py::object& device) {
    const Gpu& gpu = get_supported_gpu(parse_ordinal(device));
    try {
        return {&load_kernel(gpu, problem, config, cubin, name)};
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch, "config = " + to_string(config) + ": " + error.what() + "; compile it for " +
                                            gpu.device.name + ".");
    } catch (const UnplacedCluster& error) {
        throw Error(ErrorKind::kLaunch, std::string(error.what()) + "; use a config with clusters of one CTA.");
    }
}

Operand optional_operand(const char* name, const py::object& object) {
    return object.is_none() ? Operand{} : make_operand(name, object.ptr());
}

[[noreturn]] void fail_argument(const char* message) { throw Error(ErrorKind::kArgument, message); }

// `groups` was checked to be given for grouped kernels only.
void launch_on(const LoadedKernel& kernel, const GemmOperands& operands, const GemmOptions& options,
               const py::object& groups, int num_sms) {
    if (groups.is_none()) return launch_explicit(kernel, operands, options, num_sms);
    if (options.alpha != 1.0f || options.beta != 1.0f || options.heads.is_given())
        fail_argument("alpha, beta, head_splits: a grouped kernel takes none of them; leave them out.");
    GroupedCall call{.operands = operands,
                     .groups = make_operand("groups", groups.ptr()),
                     .options = options,
                     .layout = kernel.problem.group_layout,
                     .alignment = get_mk_alignment()};
    launch_grouped_explicit(kernel, call, num_sms);
}

void launch_kernel(const KernelHandle& self, const py::object& a, const py::object& scale_a, const py::object& b,
                   const py::object& scale_b, const py::object& d, const py::object& c, const py::object& groups,
                   const py::object& num_sms, const py::object& alpha, const py::object& beta,
                   const py::object& head_splits, const py::object& stream) {
    const Problem& problem = self.kernel->problem;
    if (groups.is_none() == is_grouped(problem.op))
        fail_argument(
            "groups: a grouped kernel takes m_indices, masked_m or ks_tensor, a dense kernel none; pass it "
            "accordingly.");
    if (scale_a.is_none() != scale_b.is_none() || scale_a.is_none() == is_fp8(problem.op))
        fail_argument("scale_a, scale_b: an FP8 kernel takes both, a BF16 kernel neither; pass them accordingly.");
    const GemmOperands operands{make_operand("a", a.ptr()), optional_operand("scale_a", scale_a),
                                make_operand("b", b.ptr()), optional_operand("scale_b", scale_b),
                                make_operand("d", d.ptr()), optional_operand("c", c)};
    GemmOptions options{.op = problem.op,
                        .recipe = problem.recipe,
                        .alpha = parse_factor("alpha", alpha.ptr()),
                        .beta = parse_factor("beta", beta.ptr()),
                        .stream = stream.ptr()};
    if (!head_splits.is_none()) options.heads = parse_head_splits(head_splits.ptr());
    launch_on(*self.kernel, operands, options, groups, parse_num_sms(num_sms));
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

py::dict stats_dict() {
    const DispatchStats stats = dispatch_stats();
    return py::dict("size"_a = stats.size, "capacity"_a = stats.capacity, "hits"_a = stats.hits,
                    "misses"_a = stats.misses, "clears"_a = stats.clears);
}

py::dict geometry_dict(const LaunchGeometry& geometry) {
    return py::dict("num_ctas"_a = geometry.num_ctas, "num_m_tiles"_a = geometry.num_m_tiles,
                    "num_n_tiles"_a = geometry.num_n_tiles, "band"_a = geometry.band);
}

void bind_kernel(py::module_& m) {
    py::class_<TensorView>(
        m, "TensorView",
        "Device memory described by numbers; accepted where a CUDA tensor is. The caller answers for the memory, "
        "and without `stream=` launches go to the legacy default stream.")
        .def(py::init(&make_view), "address"_a, "shape"_a, "strides"_a, "dtype"_a, "device"_a = 0,
             "Describe a tensor: strides in elements, dtype such as 'float8_e4m3fn', device as the CUDA ordinal.");
    py::class_<KernelHandle>(m, "Kernel", "A compiled kernel, loaded on one GPU for the life of the process.")
        .def(py::init(&make_kernel), "cubin"_a, "name"_a, "problem"_a, "config"_a, "device"_a = 0,
             "Load `cubin`, made for `problem` (its variant and compiled dims) and `config`, on CUDA device `device`. "
             "Raises: ConfigError, "
             "DeviceError, LaunchError.")
        .def(
            "launch", &launch_kernel, "a"_a, "scale_a"_a, "b"_a, "scale_b"_a, "d"_a, "c"_a = py::none(), py::kw_only(),
            "groups"_a = py::none(), "num_sms"_a = 0, "alpha"_a = 1.0, "beta"_a = 1.0, "head_splits"_a = py::none(),
            "stream"_a = py::none(),
            "Launch on A [m, k] and B [n, k] (views of any major that the kernel takes) and the rest as for "
            "fp8_gemm_nt, past selection; "
            "scales are None for BF16, num_sms 0 means all, stream None the current one. Of a grouped kernel `groups` "
            "is m_indices, masked_m "
            "or ks_tensor, and operands are as for its op, each as [m, k] and [n, k] of every group (1-D where groups "
            "of K are blocks).\n\n"
            "Raises: the errors of fp8_gemm_nt; ArgumentError where the operands are not what the kernel was made for.")
        .def_property_readonly(
            "problem", [](const KernelHandle& self) { return self.kernel->problem; },
            "The variant and compiled dims; sizes that are not compiled in are 1.")
        .def_property_readonly("config", [](const KernelHandle& self) { return self.kernel->config; })
        .def_property_readonly(
            "num_regs", [](const KernelHandle& self) { return self.kernel->num_regs; },
            "Registers a thread, as the driver reports them.")
        .def_property_readonly(
            "local_bytes", [](const KernelHandle& self) { return self.kernel->local_bytes; },
            "Local memory a thread; 0 unless it spills.")
        .def_property_readonly(
            "max_clusters", [](const KernelHandle& self) { return self.kernel->max_clusters; },
            "Clusters that the GPU holds at once; 0 for clusters of one CTA.");
}

void bind_devices(py::module_& m) {
    m.def(
        "get_device", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal)).device; },
        "ordinal"_a = py::none(),
        "Return the Device of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_device_uuid", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal)).uuid; },
        "ordinal"_a = py::none(),
        "Return 'GPU-...' of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_driver_version", [] { return driver::api().version; },
        "Return the CUDA version that the driver supports, e.g. 13000. Raises: DeviceError.");
}

void bind_dispatch(py::module_& m) {
    m.def("dispatch_clear", &clear_dispatch_table, "Forget every planned problem; loaded kernels stay.");
    m.def(
        "time_dispatch_hits",
        [](const std::vector<Problem>& problems, int rounds) {
            return time_dispatch_hits(get_supported_gpu(0), problems, rounds);
        },
        "problems"_a, "rounds"_a,
        "Return the seconds that the table takes to answer one seen problem of CUDA device 0, on average. Clears the "
        "table first. Raises: "
        "the errors of planning.");
    m.def("dispatch_stats", &stats_dict, "Return size, capacity, hits, misses and clears of the dispatch table.");
    m.def(
        "launch_geometry",
        [](const Config& config, int64_t m, int64_t n, int num_sms, int sm_count, int max_clusters) {
            return geometry_dict(get_geometry(config, {m, n, 1}, num_sms, sm_count, max_clusters));
        },
        "config"_a, "m"_a, "n"_a, py::kw_only(), "num_sms"_a = 0, "sm_count"_a, "max_clusters"_a = 0,
        "Return grid size, tile counts and band of a dense launch.");
    m.def(
        "grouped_launch_geometry",
        [](const Problem& problem, const Config& config, int sm_count, int max_clusters) {
            return geometry_dict(get_grouped_geometry(problem, config, problem.num_sms, sm_count, max_clusters));
        },
        "problem"_a, "config"_a, py::kw_only(), "sm_count"_a, "max_clusters"_a = 0,
        "Return the same of the launch of a grouped problem. Raises: ShapeError.");
}

void bind_ops(py::module_& m) {
    const py::str module("deep_gemm");
    for (std::span<PyMethodDef> methods :
         {fp8_gemm_methods(), bf16_gemm_methods(), m_grouped_gemm_methods(), k_grouped_gemm_methods()})
        for (PyMethodDef& method : methods) {
            py::object op = py::reinterpret_steal<py::object>(PyCFunction_NewEx(&method, nullptr, module.ptr()));
            if (!op) throw py::error_already_set();
            m.add_object(method.ml_name, op);
        }
}

void bind_policy(py::module_& m) {
    m.def(
        "set_num_sms", [](const py::object& num_sms) { set_num_sms(parse_num_sms(num_sms)); }, "num_sms"_a,
        "Let launches of this process use `num_sms` SMs; 0 means all of the device, and more than it has likewise.");
    m.def("get_num_sms", &get_num_sms, "Return what set_num_sms set last; 0 means all SMs of the device.");
    m.def(
        "set_mk_alignment_for_contiguous_layout",
        [](const py::object& alignment) { set_mk_alignment(parse_alignment(alignment)); }, "alignment"_a,
        "Let the rows of every group of m-grouped contiguous products of this process start at multiples of "
        "`alignment`, a multiple of 8 "
        "up to 65536; 128 at first. Smaller ones leave fewer configs. Raises: ArgumentError.");
    m.def("get_mk_alignment_for_contiguous_layout", &get_mk_alignment,
          "Return what set_mk_alignment_for_contiguous_layout set last.");
    for (const char* alias : {"get_m_alignment_for_contiguous_layout", "get_k_alignment_for_contiguous_layout"})
        m.attr(alias) = m.attr("get_mk_alignment_for_contiguous_layout");
    m.def(
        "set_pdl", [](const py::object& is_enabled) { set_pdl(parse_flag("is_enabled", is_enabled.ptr())); },
        "is_enabled"_a,
        "Let kernels of this process start while the kernel before them in the stream ends (programmatic dependent "
        "launch); off by "
        "default. They touch memory only after it has ended. Raises: ArgumentError.");
    m.def("get_pdl", &get_pdl, "Return whether set_pdl is on.");
    m.def(
        "set_tc_util", [](const py::object& ratio) { set_tc_util(parse_factor("ratio", ratio.ptr())); }, "ratio"_a,
        "Keep the share of the tensor cores that the caller wishes used, 0..1; numbers above 1 are percent. Accepted "
        "for compatibility: "
        "no kernel of SM90 throttles itself by it. Raises: ArgumentError.");
    m.def("get_tc_util", &get_tc_util, "Return what set_tc_util set last, within 0..1; 1.0 at first.");
    m.def(
        "set_batch_invariant",
        [](const py::object& is_enabled) { set_batch_invariant(parse_flag("is_enabled", is_enabled.ptr())); },
        "is_enabled"_a,
        "Limit selection to configs with which a row of D does not depend on m, bit for bit; overrides "
        "DG_BATCH_INVARIANT. Raises: "
        "ArgumentError.");
    m.def("is_batch_invariant", &is_batch_invariant,
          "Return what set_batch_invariant set last, or what DG_BATCH_INVARIANT says.");
}

}  // namespace

void bind_runtime(py::module_& m) {
    bind_kernel(m);
    bind_devices(m);
    bind_dispatch(m);
    bind_ops(m);
    bind_policy(m);
}

}  // namespace deep_gemm
