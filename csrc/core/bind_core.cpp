// The Python faces of problem, config, device, legality, candidates, heuristic and features.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "core/candidates.hpp"
#include "core/config.hpp"
#include "core/device.hpp"
#include "core/error.hpp"
#include "core/features.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"
#include "core/py_integers.hpp"
#include "module.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

bool checked_bool(py::handle value, const char* name) {
    if (!PyBool_Check(value.ptr()))
        throw Error(ErrorKind::kProblem,
                    std::string(name) + " = " + short_repr(value) + ": must be a bool; pass True or False");
    return value.ptr() == Py_True;
}

Problem make_problem(const std::string& op, py::object m, py::object n, py::object k, py::object num_sms,
                     py::object num_groups, py::object expected_m, py::object alignment,
                     const std::string& compiled_dims, const std::string& recipe, const std::string& d_dtype,
                     const std::string& c_mode, const std::string& a_major, const std::string& b_major,
                     const std::string& scale_layout, const std::string& group_layout, py::object batch_invariant) {
    Problem problem{.op = parse_op(op), .compiled_dims = parse_compiled_dims(compiled_dims)};
    const py::handle given[] = {m, n, k, num_sms, num_groups, expected_m, alignment};
    for (size_t i = 0; i < kProblemFields.size(); ++i)
        set_field(problem, i, checked_integer(given[i], kProblemFields[i], ErrorKind::kProblem));
    const std::string* enums[] = {&recipe, &d_dtype, &c_mode, &a_major, &b_major, &scale_layout, &group_layout};
    for (size_t i = 0; i < kProblemEnums.size(); ++i)
        kProblemEnums[i].set(problem, parse_enum(kProblemEnums[i], *enums[i]));
    problem.batch_invariant = checked_bool(batch_invariant, "batch_invariant");
    check_problem(problem);
    return problem;
}

py::dict problem_dict(const Problem& problem) {
    py::dict out("op"_a = std::string(op_name(problem.op)));
    for (size_t i = 0; i < kProblemFields.size(); ++i) out[kProblemFields[i].name] = get_field(problem, i);
    out["compiled_dims"] = compiled_dims_text(problem.compiled_dims);
    for (const EnumField& field : kProblemEnums) out[field.name] = enum_name(field, problem);
    out["batch_invariant"] = problem.batch_invariant;
    return out;
}

std::string problem_repr(const Problem& problem) {
    std::string text = "Problem('" + std::string(op_name(problem.op)) + "', " + std::to_string(problem.m) + ", " +
                       std::to_string(problem.n) + ", " + std::to_string(problem.k);
    for (size_t i = 3; i < kProblemFields.size(); ++i)
        if (get_field(problem, i) != kProblemFields[i].default_value)
            text += std::string(", ") + kProblemFields[i].name + "=" + std::to_string(get_field(problem, i));
    if (problem.compiled_dims != 0) text += ", compiled_dims='" + compiled_dims_text(problem.compiled_dims) + "'";
    for (const EnumField& field : kProblemEnums)
        if (field.get(problem) != 0) text += std::string(", ") + field.name + "='" + enum_name(field, problem) + "'";
    return text + (problem.batch_invariant ? ", batch_invariant=True)" : ")");
}

void bind_problem_fields(py::class_<Problem>& problem) {
    for (size_t i = 0; i < kProblemFields.size(); ++i)
        problem.def_property_readonly(kProblemFields[i].name, [i](const Problem& self) { return get_field(self, i); });
    for (const EnumField& field : kProblemEnums)
        problem.def_property_readonly(field.name, [&field](const Problem& self) { return enum_name(field, self); });
    problem.def_readonly("batch_invariant", &Problem::batch_invariant);
}

void bind_problem(py::module_& m) {
    py::class_<Problem> problem(m, "Problem",
                                "What the host knows when an op is called: sizes, SMs to use, groups (their number, "
                                "the rows expected in one, the alignment of "
                                "their first rows), dims that are constants of the kernel, and the variant (scale "
                                "recipe, dtype of D, what is added to D, majors, "
                                "layouts of the scales and of groups of K, batch invariance). Immutable.");
    bind_problem_fields(problem);
    problem
        .def(py::init(&make_problem), "op"_a, "m"_a, "n"_a, "k"_a, py::kw_only(), "num_sms"_a = 0, "num_groups"_a = 0,
             "expected_m"_a = 0, "alignment"_a = Problem::kDefaultAlignment, "compiled_dims"_a = "",
             "recipe"_a = "1d2d", "d_dtype"_a = "bf16", "c_mode"_a = "none", "a_major"_a = "k", "b_major"_a = "k",
             "scale_layout"_a = "mn_major", "group_layout"_a = "joint", "batch_invariant"_a = false,
             "Describe a problem. Raises: ProblemError for an unknown op, a field outside its range or values, or "
             "fields that contradict "
             "each other.")
        .def_property_readonly("op", [](const Problem& self) { return std::string(op_name(self.op)); })
        .def_property_readonly("compiled_dims",
                               [](const Problem& self) { return compiled_dims_text(self.compiled_dims); })
        .def_property_readonly(
            "key", [](const Problem& self) { return to_hex(problem_digest(self)); },
            "SHA-256 of to_json(), in hexadecimal.")
        .def(
            "to_json", [](const Problem& self) { return to_json(self); },
            "Return canonical JSON: sorted keys, fields at their default left out.")
        .def_static(
            "from_json", [](const std::string& text) { return problem_from_json(text); }, "text"_a,
            "Read what to_json wrote. Raises: ProblemError.")
        .def("as_dict", &problem_dict, "Return all fields and the op, defaults included.")
        .def(
            "__eq__", [](const Problem& self, const Problem& other) { return self == other; }, py::is_operator())
        .def("__hash__", [](const Problem& self) { return hash_value(self); })
        .def("__str__", [](const Problem& self) { return to_string(self); })
        .def("__repr__", &problem_repr)
        .def(py::pickle([](const Problem& self) { return py::make_tuple(to_json(self)); },
                        [](const py::tuple& state) { return problem_from_json(state[0].cast<std::string>()); }));
}

Config make_config(py::object block_m, py::object block_n, py::object num_stages, py::object block_k,
                   py::object cluster_m, py::object cluster_n, py::object split_k, py::object swap_ab) {
    const py::handle given[] = {block_m, block_n, block_k, num_stages, cluster_m, cluster_n, split_k, swap_ab};
    std::array<int64_t, Config::kNumFields> values;
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = checked_integer(given[i], kConfigFields[i], ErrorKind::kConfig);
    return Config::from_values(values);
}

py::dict config_dict(const Config& config) {
    py::dict out;
    const auto values = config.values();
    for (size_t i = 0; i < values.size(); ++i) out[kConfigFields[i].name] = values[i];
    return out;
}

std::string config_repr(const Config& config) {
    std::string text = "Config(" + std::to_string(config.block_m) + ", " + std::to_string(config.block_n) + ", " +
                       std::to_string(config.num_stages);
    const auto values = config.values();
    for (size_t i = 0; i < values.size(); ++i)
        if (!kConfigFields[i].is_required && values[i] != kConfigFields[i].default_value)
            text += std::string(", ") + kConfigFields[i].name + "=" + std::to_string(values[i]);
    return text + ")";
}

void bind_config(py::module_& m) {
    py::class_<Config>(m, "Config",
                       "How an op is carried out: tile, stages, cluster, split of K, operand order. Immutable; "
                       "is_legal says whether it "
                       "may run.")
        .def(py::init(&make_config), "block_m"_a, "block_n"_a, "num_stages"_a, py::kw_only(), "block_k"_a = kBlockK,
             "cluster_m"_a = 1, "cluster_n"_a = 1, "split_k"_a = 1, "swap_ab"_a = 0,
             "Describe a config. Raises: ConfigError for a field that is no integer within its range (1..65535; "
             "swap_ab 0..1).")
        .def_readonly("block_m", &Config::block_m)
        .def_readonly("block_n", &Config::block_n)
        .def_readonly("block_k", &Config::block_k)
        .def_readonly("num_stages", &Config::num_stages)
        .def_readonly("cluster_m", &Config::cluster_m)
        .def_readonly("cluster_n", &Config::cluster_n)
        .def_readonly("split_k", &Config::split_k)
        .def_readonly("swap_ab", &Config::swap_ab)
        .def(
            "key", [](const Config& self, const std::string& op) { return to_hex(config_digest(self, parse_op(op))); },
            "op"_a, "Return the SHA-256 of {fields, op} in canonical JSON, in hexadecimal.")
        .def(
            "to_json", [](const Config& self) { return to_json(self); },
            "Return the fields as canonical JSON, defaults left out.")
        .def_static(
            "from_json", [](const std::string& text) { return config_from_json(text); }, "text"_a,
            "Read what to_json wrote. Raises: ConfigError.")
        .def("as_dict", &config_dict, "Return all fields, defaults included.")
        .def(
            "__eq__", [](const Config& self, const Config& other) { return self == other; }, py::is_operator())
        .def("__hash__", [](const Config& self) { return hash_value(self); })
        .def("__str__", [](const Config& self) { return to_string(self); })
        .def("__repr__", &config_repr)
        .def(py::pickle([](const Config& self) { return py::make_tuple(to_json(self)); },
                        [](const py::tuple& state) { return config_from_json(state[0].cast<std::string>()); }));
}

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

void bind_device(py::module_& m) {
    py::class_<Device>(m, "Device", "What selection needs to know of a GPU. Immutable; makes no CUDA call.")
        .def(py::init(&make_python_device), "name"_a, "sm_count"_a, py::kw_only(), "sku"_a = py::none(),
             "smem_bytes"_a = kSm90SmemBytes, "l2_bytes"_a, "compute_capability"_a = std::pair<int, int>(9, 0),
             "clock_mhz"_a, "memory_gbps"_a, "mig"_a = "",
             "Describe a GPU; sku is derived as slug(name)-sm<count>[-mig<profile>]. Raises: DeviceError.")
        .def_static(
            "known", [](const std::string& name) { return known_device(name); }, "sku_or_short_name"_a,
            "Return h200, h100, h800, h20 or gh200, by short name or SKU. Raises: DeviceError.")
        .def_readonly("name", &Device::name)
        .def_readonly("sku", &Device::sku)
        .def_readonly("mig", &Device::mig)
        .def_readonly("sm_count", &Device::sm_count)
        .def_readonly("smem_bytes", &Device::smem_bytes)
        .def_readonly("l2_bytes", &Device::l2_bytes)
        .def_readonly("clock_mhz", &Device::clock_mhz)
        .def_readonly("memory_gbps", &Device::memory_gbps)
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

void bind_legality(py::module_& m) {
    m.attr("LAUNCH_ABI") = kLaunchAbi;
    m.attr("ANY_TILE_ALIGNMENT") = kAnyTileAlignment;
    m.attr("TILE_QUEUE_BYTES") = kTileQueueBytes;
    m.def("is_legal", &is_legal, "problem"_a, "config"_a, "device"_a,
          "Return whether `config` may run; never depends on m, n or k.");
    m.def("is_worth_trying", &is_worth_trying, "problem"_a, "config"_a, "device"_a,
          "Return whether `config` is legal for this problem and not pointless: the learned choice is among such "
          "configs.");
    m.def("legality_reason", &legality_reason, "problem"_a, "config"_a, "device"_a,
          "Return '' for a legal config, else a sentence that says why not.");
    m.def("smem_bytes", &smem_bytes, "problem"_a, "config"_a,
          "Return the dynamic shared memory of one block in bytes.");
    m.def("num_threads", &num_threads, "config"_a, "Return the threads of one block.");
    m.def("estimate_registers", &estimate_registers, "problem"_a, "config"_a,
          "Return the registers that a math thread needs, estimated from above.");
    m.def("is_pipelined", &is_pipelined, "problem"_a, "config"_a,
          "Return whether a math warpgroup holds two partial accumulators.");
    m.def("blocks_per_sm", &blocks_per_sm, "problem"_a, "config"_a,
          "Return the blocks that share an SM, by their shared memory and registers.");
    m.def("is_staged", &is_staged, "problem"_a, "config"_a,
          "Return whether D leaves through a tile in shared memory by TMA, else by the threads' own stores.");
}

void bind_space(py::module_& m) {
    m.def("get_candidates", &get_candidates, "problem"_a, "device"_a,
          "Return the configs worth trying (at most 160), in a fixed order.");
    m.def("get_default_space", &get_default_space, "problem"_a, "device"_a,
          "Return every config that get_candidates can return on `device` for some problem of `problem`'s variant.");
    m.def(
        "get_default_space", [](const Device& device) { return get_default_space(Problem{}, device); }, "device"_a,
        "Return the default space of fp8_gemm with every field at its default.");
}

// Tile arithmetic holds for the kernels' own shapes only; the estimate needs no legality on this very device.
void check_geometry(Op op, const Config& config) {
    static const Device reference = known_device("h200");
    const std::string reason = impossible_reason(op, config, reference);
    if (!reason.empty()) throw Error(ErrorKind::kConfig, reason);
}

py::dict constants_dict() {
    py::dict out;
    const HeuristicRates rates;
    for (const RateField& field : kRateFields) out[field.name] = rates.*field.member;
    return out;
}

HeuristicRates rates_from(const std::optional<py::dict>& constants) {
    HeuristicRates rates;
    if (!constants) return rates;
    size_t known = 0;
    for (const RateField& field : kRateFields) {
        if (!constants->contains(field.name)) continue;
        rates.*field.member = (*constants)[field.name].cast<double>();
        ++known;
    }
    if (known != constants->size())
        throw Error(ErrorKind::kArgument, "constants: holds an unknown name; use those of heuristic_constants()");
    return rates;
}

void bind_heuristic(py::module_& m) {
    m.attr("HEURISTIC_VERSION") = heuristic_version();
    m.attr("FEATURES_VERSION") = kFeaturesVersion;
    m.def("heuristic_constants", &constants_dict, "Return the heuristic's constants (an H200's) by name.");
    m.def(
        "estimate_time_us",
        [](const Problem& problem, const Config& config, const Device& device,
           const std::optional<py::dict>& constants) {
            check_geometry(problem.op, config);
            return Estimator(problem, device, rates_from(constants)).time_us(config);
        },
        "problem"_a, "config"_a, "device"_a, "constants"_a = py::none(),
        "Return the heuristic's predicted time in microseconds; `constants` replaces some of heuristic_constants(). "
        "Raises: ConfigError, "
        "ArgumentError.");
    m.def("get_analytic_config", &get_analytic_config, "problem"_a, "device"_a,
          "Return the heuristic's choice: the candidate with the smallest predicted time. Raises: DeviceError where "
          "none is legal.");
    m.def(
        "feature_names",
        [](const std::string& op, const std::vector<Config>& portfolio) {
            return feature_names(parse_op(op), portfolio);
        },
        "op"_a, "portfolio"_a,
        "Return the names of get_features' numbers for problems of an op kind. Raises: ProblemError.");
    m.def(
        "get_features",
        [](const Problem& problem, const Device& device, const std::vector<Config>& portfolio) {
            for (const Config& config : portfolio) check_geometry(problem.op, config);
            return get_features(problem, device, portfolio);
        },
        "problem"_a, "device"_a, "portfolio"_a,
        "Return the selector's input for `problem`. Raises: ConfigError, DeviceError.");
}

}  // namespace

void bind_core(py::module_& m) {
    bind_problem(m);
    bind_config(m);
    bind_device(m);
    bind_legality(m);
    bind_space(m);
    bind_heuristic(m);
}

}  // namespace deep_gemm
