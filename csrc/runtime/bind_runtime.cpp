// The Python faces of driver, kernels, dispatch and the ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/py_integers.hpp"
#include "module.hpp"
#include "runtime/arguments.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/fp8_gemm.hpp"
#include "runtime/gpu.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"
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
constexpr IntegerField kOrdinalField{"device", 0, 65535, 0, false};

int parse_num_sms(const py::object& num_sms) { return int(checked_integer(num_sms, kNumSmsField, ErrorKind::kArgument)); }

int parse_ordinal(const py::object& ordinal) {
    return ordinal.is_none() ? current_ordinal() : int(checked_integer(ordinal, kOrdinalField, ErrorKind::kArgument));
}

KernelHandle make_kernel(const py::bytes& cubin, const std::string& name, const Config& config, const py::object& device) {
    const Gpu& gpu = get_supported_gpu(parse_ordinal(device));
    try {
        return {&load_kernel(gpu, config, cubin, name)};
    } catch (const UnusableCubin& error) {
        throw Error(ErrorKind::kLaunch,
                    "config = " + to_string(config) + ": " + error.what() + "; compile it for " + gpu.device.name + ".");
    }
}

void launch_kernel(const KernelHandle& self, py::object a, py::object scale_a, py::object b, py::object scale_b, py::object d,
                   py::object num_sms, py::object alpha, py::object stream) {
    launch_explicit(*self.kernel, {a.ptr(), scale_a.ptr(), b.ptr(), scale_b.ptr(), d.ptr(), parse_num_sms(num_sms),
                                   parse_factor("alpha", alpha.ptr()), stream.ptr()});
}

TensorView make_view(uint64_t address, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, const std::string& dtype,
                     int device) {
    if (shape.size() != strides.size() || shape.size() > kMaxRank)
        throw Error(ErrorKind::kShape,
                    "shape: must have as many entries as strides, at most " + std::to_string(kMaxRank) + "; describe each dim once.");
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
    return py::dict("size"_a = stats.size, "capacity"_a = stats.capacity, "hits"_a = stats.hits, "misses"_a = stats.misses,
                    "clears"_a = stats.clears);
}

py::dict geometry_dict(const Config& config, int64_t m, int64_t n, int num_sms, int sm_count, int max_clusters) {
    const LaunchGeometry geometry = get_geometry(config, {m, n, 1}, num_sms, sm_count, max_clusters);
    return py::dict("num_ctas"_a = geometry.num_ctas, "num_m_tiles"_a = geometry.num_m_tiles, "num_n_tiles"_a = geometry.num_n_tiles,
                    "band"_a = geometry.band);
}

void bind_kernel(py::module_& m) {
    py::class_<TensorView>(m, "TensorView",
                           "Device memory described by numbers; accepted where a CUDA tensor is. The caller answers for the memory, "
                           "and without `stream=` launches go to the legacy default stream.")
        .def(py::init(&make_view), "address"_a, "shape"_a, "strides"_a, "dtype"_a, "device"_a = 0,
             "Describe a tensor: strides in elements, dtype such as 'float8_e4m3fn', device as the CUDA ordinal.");
    py::class_<KernelHandle>(m, "Kernel", "A compiled kernel, loaded on one GPU for the life of the process.")
        .def(py::init(&make_kernel), "cubin"_a, "name"_a, "config"_a, "device"_a = 0,
             "Load `cubin` on CUDA device `device`. Raises: ConfigError, DeviceError, LaunchError.")
        .def("launch", &launch_kernel, "a"_a, "scale_a"_a, "b"_a, "scale_b"_a, "d"_a, py::kw_only(), "num_sms"_a = 0, "alpha"_a = 1.0,
             "stream"_a = py::none(),
             "Launch on operands shaped as for fp8_gemm_nt, past selection; num_sms 0 means all, stream None the current one.\n\n"
             "Raises: the errors of fp8_gemm_nt.")
        .def_property_readonly("config", [](const KernelHandle& self) { return self.kernel->config; })
        .def_property_readonly(
            "num_regs", [](const KernelHandle& self) { return self.kernel->num_regs; }, "Registers a thread, as the driver reports them.")
        .def_property_readonly(
            "local_bytes", [](const KernelHandle& self) { return self.kernel->local_bytes; }, "Local memory a thread; 0 unless it spills.")
        .def_property_readonly(
            "max_clusters", [](const KernelHandle& self) { return self.kernel->max_clusters; },
            "Clusters that the GPU holds at once; 0 for clusters of one CTA.");
}

void bind_devices(py::module_& m) {
    m.def(
        "get_device", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal)).device; }, "ordinal"_a = py::none(),
        "Return the Device of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_device_uuid", [](const py::object& ordinal) { return get_gpu(parse_ordinal(ordinal)).uuid; }, "ordinal"_a = py::none(),
        "Return 'GPU-...' of CUDA ordinal `ordinal` (None: the current one). Opens the driver. Raises: DeviceError.");
    m.def(
        "get_driver_version", [] { return driver::api().version; },
        "Return the CUDA version that the driver supports, e.g. 13000. Raises: DeviceError.");
    m.def(
        "set_num_sms", [](const py::object& num_sms) { set_num_sms(parse_num_sms(num_sms)); }, "num_sms"_a,
        "Let launches of this process use `num_sms` SMs; 0 means all of the device, and more than it has likewise.");
    m.def("get_num_sms", &get_num_sms, "Return what set_num_sms set last; 0 means all SMs of the device.");
}

void bind_dispatch(py::module_& m) {
    m.def("dispatch_clear", &clear_dispatch_table, "Forget every planned problem; loaded kernels stay.");
    m.def(
        "time_dispatch_hits",
        [](const std::vector<Problem>& problems, int rounds) { return time_dispatch_hits(get_supported_gpu(0), problems, rounds); },
        "problems"_a, "rounds"_a,
        "Return the seconds that the table takes to answer one seen problem of CUDA device 0, on average. Clears the table first. Raises: "
        "the errors of planning.");
    m.def("dispatch_stats", &stats_dict, "Return size, capacity, hits, misses and clears of the dispatch table.");
    m.def("launch_geometry", &geometry_dict, "config"_a, "m"_a, "n"_a, py::kw_only(), "num_sms"_a = 0, "sm_count"_a, "max_clusters"_a = 0,
          "Return grid size, tile counts and band of a launch.");
    PyObject* op = PyCFunction_NewEx(&fp8_gemm_nt_method, nullptr, py::str("deep_gemm").ptr());
    if (op == nullptr) throw py::error_already_set();
    m.add_object("fp8_gemm_nt", py::reinterpret_steal<py::object>(op));
}

}  // namespace

void bind_runtime(py::module_& m) {
    bind_kernel(m);
    bind_devices(m);
    bind_dispatch(m);
}

}  // namespace deep_gemm
