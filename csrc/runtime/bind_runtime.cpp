// The Python face of driver and dispatch; the other parts are in bind_kernel.cpp and bind_ops.cpp.
#include "runtime/bind_runtime.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "core/config.hpp"
#include "module.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/gpu.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"
#include "runtime/plain_kernel.hpp"
#include "runtime/scale_copy.hpp"
#include "runtime/sum_parts.hpp"
#include "runtime/sum_products.hpp"
#include "runtime/torch_calls.hpp"
#include "runtime/transpose.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

py::dict stats_dict() {
    const DispatchStats stats = dispatch_stats();
    return py::dict("size"_a = stats.size, "capacity"_a = stats.capacity, "hits"_a = stats.hits,
                    "misses"_a = stats.misses, "clears"_a = stats.clears);
}

py::dict geometry_dict(const LaunchGeometry& geometry) {
    return py::dict("num_ctas"_a = geometry.num_ctas, "num_m_tiles"_a = geometry.num_m_tiles,
                    "num_n_tiles"_a = geometry.num_n_tiles, "band"_a = geometry.band);
}

void bind_devices(py::module_& m) {
    m.def(
        "get_device", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal.ptr())).device; },
        "ordinal"_a = py::none(),
        "Return the Device of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_device_uuid", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal.ptr())).uuid; },
        "ordinal"_a = py::none(),
        "Return 'GPU-...' of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_driver_version", [] { return driver::api().version; },
        "Return the CUDA version that the driver supports, e.g. 13000. Raises: DeviceError.");
}

void bind_dispatch(py::module_& m) {
    // Tests and benchmarks see by the table what was planned, and by the geometry what a launch would be.
    m.def("dispatch_clear", &clear_dispatch_table, "Forget every planned problem; loaded kernels stay.");
    m.def(
        "time_dispatch_hits",
        [](const std::vector<Problem>& problems, int rounds) {
            return time_dispatch_hits(get_supported_gpu(0), problems, rounds);
        },
        "problems"_a, "rounds"_a,
        "Return the mean time in seconds in which the table answers a problem of CUDA device 0 that it has seen. "
        "Clears the table first. Raises: the errors of planning.");
    m.def(
        "plan_ahead",
        [](const Problem& problem, const py::object& ordinal) {
            get_dispatch_entry(get_supported_gpu(parse_ordinal(ordinal.ptr())), problem);
        },
        "problem"_a, "ordinal"_a = py::none(),
        "Plan `problem` and load its kernel on CUDA ordinal `ordinal` (None: the current one) as a call of it would. "
        "Raises: the errors of planning.");
    m.def(
        "load_transpose_kernel",
        [](const py::object& ordinal) { load_transpose_kernel(get_supported_gpu(parse_ordinal(ordinal.ptr()))); },
        "ordinal"_a = py::none(),
        "Load the pass that makes FP8 operands K-major on CUDA ordinal `ordinal` (None: the current one). Raises: "
        "the errors of planning.");
    m.def(
        "load_scale_copy_kernels",
        [](const py::object& ordinal) { load_scale_copy_kernels(get_supported_gpu(parse_ordinal(ordinal.ptr()))); },
        "ordinal"_a = py::none(),
        "Load the pass that copies row-major scales on CUDA ordinal `ordinal` (None: the current one). Raises: the "
        "errors of planning.");
    m.def(
        "is_small_sum",
        [](const Problem& problem, const Device& device) { return is_small_sum(problem, device.sm_count); },
        "problem"_a, "device"_a,
        "Return whether calls of `problem` on `device` are sums over groups that one plain kernel takes whole, without "
        "a GEMM.");
    m.def(
        "load_sum_kernel",
        [](bool is_small, bool is_float, bool has_c, const py::object& ordinal) {
            load_sum_kernel(get_supported_gpu(parse_ordinal(ordinal.ptr())), is_small, {is_float, has_c});
        },
        "is_small"_a, "is_float"_a, "has_c"_a, "ordinal"_a = py::none(),
        "Load what small sums over groups launch, or other ones after their GEMM, on CUDA ordinal `ordinal` (None: the "
        "current one), for an FP32 or BF16 D, with C or without. Raises: the errors of planning.");
    m.def("dispatch_stats", &stats_dict, "Return size, capacity, hits, misses and clears of the dispatch table.");
    m.def(
        "launch_geometry",
        [](const Problem& problem, const Config& config, int sm_count, int max_clusters, double memory_gbps,
           int register_blocks) {
            Device device;
            device.sm_count = sm_count, device.memory_gbps = memory_gbps;
            return geometry_dict(get_geometry(problem, config, problem.num_sms, device, max_clusters, register_blocks));
        },
        "problem"_a, "config"_a, py::kw_only(), "sm_count"_a, "max_clusters"_a = 0, "memory_gbps"_a = 0.0,
        "register_blocks"_a = kMaxBlocksPerSm,
        "Return grid size, tile counts and band of the launch of `problem` on its num_sms of a GPU; memory_gbps: the "
        "rate of its memory, 1e9 bytes a second (0: not known); register_blocks: CTAs that an SM has registers for. "
        "Raises: ShapeError.");
}

void bind_plain_kernels(py::module_& m) {
    m.def(
        "make_plain_kernel",
        [](const std::string& name, const PlainConstants& constants, unsigned threads, unsigned shared_bytes) {
            Reference function = make_plain_builtin(name, constants, threads, shared_bytes);
            return py::reinterpret_steal<py::object>(function.release());
        },
        "name"_a, "constants"_a, "threads"_a, "shared_bytes"_a = 0,
        "Make the builtin of a row of deep_gemm.jit.plain_kernels with `constants` [(name, value)], launched in CTAs "
        "of "
        "`threads` threads. It is called with the grid (an int, or a tuple of up to 3), then the kernel's arguments: "
        "CUDA tensors (their addresses), ints, floats (FP32) or None (0). It launches on torch's current stream of the "
        "first tensor's GPU, checks nothing but their number, and compiles at the first call. Keep it: builtins are "
        "never freed. Raises: ArgumentError.");
    m.def(
        "load_plain_kernel",
        [](const py::object& kernel, const py::object& ordinal) {
            PlainBuiltin* const builtin = find_plain_builtin(kernel.ptr());
            if (builtin == nullptr)
                throw Error(ErrorKind::kArgument,
                            "kernel = " + short_repr(kernel.ptr()) + ": must be one of make_plain_kernel; pass such.");
            load_plain_builtin(*builtin, get_supported_gpu(parse_ordinal(ordinal.ptr())));
        },
        "kernel"_a, "ordinal"_a = py::none(),
        "Load what make_plain_kernel returned on CUDA ordinal `ordinal` (None: the current one), as its first launch "
        "there would. Raises: ArgumentError, the errors of planning.");
    m.def(
        "make_planned_call",
        [](const std::string& name, const py::object& planner, const std::vector<size_t>& written) {
            Reference function = make_planned_builtin(name, planner.ptr(), written);
            return py::reinterpret_steal<py::object>(function.release());
        },
        "name"_a, "planner"_a, "written"_a = std::vector<size_t>{},
        "Make a builtin of up to 8 positional arguments: tensors, numbers, strings and short tuples of ints. "
        "`planner(*arguments)` is asked once for each kind of them and returns a deep_gemm.planned.Plan, or None. The "
        "builtin takes memory as torch does, launches on torch's current stream of the tensors' GPU and returns None, "
        "the result or the tuple of results. It returns NotImplemented, and does nothing, where the plan is None, "
        "where a tensor is no plain one on a supported GPU or an argument of another type, and where one of `written`, "
        "the indices of arguments that kernels write, requires grad in grad mode. Keep it: builtins are never freed.");
}

void bind_allocator(py::module_& m) {
    m.def(
        "set_allocator", [](const py::object& function) { set_allocator(function.ptr()); }, "function"_a,
        "Let results and temporaries on the current GPU be taken by `function(shape, strides, dtype)`; None: by torch "
        "again. For tests.");
}

}  // namespace

int parse_ordinal(PyObject* ordinal) {
    constexpr IntegerField kOrdinalField{"device", 0, 65535, 0, false};
    return ordinal == Py_None ? current_ordinal() : int(parse_integer(ordinal, kOrdinalField));
}

void bind_runtime(py::module_& m) {
    bind_kernel(m);
    bind_devices(m);
    bind_dispatch(m);
    bind_ops(m);
    bind_plain_kernels(m);
    bind_allocator(m);
}

}  // namespace deep_gemm
