// _C.Device.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "core/bindings.hpp"
#include "core/device.hpp"
#include "core/error.hpp"
#include "core/py_integers.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

Device make_python_device(std::string name, py::object sm_count, std::optional<std::string> sku, py::object smem_bytes,
                          py::object l2_bytes, std::pair<int, int> compute_capability, double clock_mhz,
                          double memory_gbps, std::string mig) {
    constexpr IntegerField kSmCount = {"sm_count", 1, 65535, 0, true}, kSmem = {"smem_bytes", 0, 1 << 30, 0, true},
                           kL2 = {"l2_bytes", 0, int64_t(1) << 40, 0, true};
    Device device;
    device.name = std::move(name);
    device.sku = sku.value_or("");
    device.mig = std::move(mig);
    device.sm_count = int32_t(checked_integer(sm_count, kSmCount, ErrorKind::kDevice));
    device.smem_bytes = checked_integer(smem_bytes, kSmem, ErrorKind::kDevice);
    device.l2_bytes = checked_integer(l2_bytes, kL2, ErrorKind::kDevice);
    std::tie(device.compute_major, device.compute_minor) = compute_capability;
    device.clock_mhz = clock_mhz;
    device.memory_gbps = memory_gbps;
    return make_device(std::move(device));
}

py::dict device_dict(const Device& device) {
    return py::dict("name"_a = device.name, "sku"_a = device.sku, "sm_count"_a = device.sm_count,
                    "smem_bytes"_a = device.smem_bytes, "l2_bytes"_a = device.l2_bytes,
                    "compute_capability"_a = py::make_tuple(device.compute_major, device.compute_minor),
                    "clock_mhz"_a = device.clock_mhz, "memory_gbps"_a = device.memory_gbps, "mig"_a = device.mig);
}

Device device_from_dict(const py::dict& state) {
    return make_python_device(
        state["name"].cast<std::string>(), state["sm_count"], state["sku"].cast<std::string>(), state["smem_bytes"],
        state["l2_bytes"], state["compute_capability"].cast<std::pair<int, int>>(), state["clock_mhz"].cast<double>(),
        state["memory_gbps"].cast<double>(), state["mig"].cast<std::string>());
}

}  // namespace

void bind_device(py::module_& m) {
    m.def(
        "base_sku", [](const std::string& sku) { return std::string(base_sku(sku)); }, "sku"_a,
        "Return a SKU without the power limit that it may end with: that of its model at the default limit.");
    m.def("power_suffix", &power_suffix, "limit_mw"_a, "default_mw"_a,
          "Return what the SKU of a board with this power limit ends with, '' near the default (milliwatts; 0: "
          "unknown).");
    m.attr("WHOLE_GPU_SMS") = kWholeGpuSms;
    m.attr("KNOWN_DEVICES") = py::tuple(py::cast(known_device_names()));
    py::class_<Device>(m, "Device", "What selection needs to know of a GPU. Immutable; makes no CUDA call.")
        .def(py::init(&make_python_device), "name"_a, "sm_count"_a, py::kw_only(), "sku"_a = py::none(),
             "smem_bytes"_a = kSm90SmemBytes, "l2_bytes"_a, "compute_capability"_a = std::pair<int, int>(9, 0),
             "clock_mhz"_a, "memory_gbps"_a, "mig"_a = "",
             "Describe a GPU; sku is derived as slug(name)-sm<count>[-mig<profile>]; a GPU at a lower power limit has "
             "-<watts>w behind. Raises: DeviceError.")
        .def_static(
            "known", [](const std::string& name) { return known_device(name); }, "sku_or_short_name"_a,
            "Return h200, h100, h800, h20 or gh200, by short name or SKU, either with or without a power limit such as"
            " -500w. Raises: DeviceError.")
        .def_readonly("name", &Device::name)
        .def_readonly("sku", &Device::sku)
        .def_readonly("mig", &Device::mig)
        .def_readonly("sm_count", &Device::sm_count)
        .def_readonly("smem_bytes", &Device::smem_bytes)
        .def_readonly("l2_bytes", &Device::l2_bytes)
        .def_readonly("clock_mhz", &Device::clock_mhz)
        .def_readonly("memory_gbps", &Device::memory_gbps)
        .def_readonly("tensor_ratio", &Device::tensor_ratio)
        .def_property_readonly(
            "compute_capability",
            [](const Device& self) { return std::pair<int, int>(self.compute_major, self.compute_minor); })
        .def("as_dict", &device_dict, "Return all fields.")
        .def(
            "__eq__", [](const Device& self, const Device& other) { return self == other; }, py::is_operator())
        .def("__hash__", [](const Device& self) { return std::hash<std::string>()(self.sku); })
        .def("__repr__", [](const Device& self) { return "Device('" + self.name + "', sku='" + self.sku + "')"; })
        .def(py::pickle(&device_dict, &device_from_dict));
}

}  // namespace deep_gemm
