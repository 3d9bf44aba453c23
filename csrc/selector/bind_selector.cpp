// Python bindings of the selector and its choices.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/error.hpp"
#include "core/text.hpp"
#include "module.hpp"
#include "selector/selector.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// A copy of a flat or C-contiguous array with elements T.
template <typename T>
std::vector<T> take_array(const py::dict& op, const char* name) {
    const py::object array = op[name];
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(array))
        refuse(std::string("array ") + name + " must be contiguous and of the dtype that the format says");
    const auto values = array.cast<py::array_t<T, py::array::c_style>>();
    return {values.data(), values.data() + values.size()};
}

OpParts take_parts(const py::dict& op) {
    return {.kernel_hash = op["kernel_hash"].cast<std::string>(),
            .has_own_estimate = op["has_own_estimate"].cast<bool>(),
            .margin = op["margin"].cast<double>(),
            .quarantined = op["quarantined"].cast<std::vector<int64_t>>(),
            .built = op["built"].cast<std::vector<std::vector<Problem>>>(),
            .configs = take_array<int32_t>(op, "configs"),
            .exact_key = take_array<uint64_t>(op, "exact_key"),
            .exact_config = take_array<int32_t>(op, "exact_config"),
            .forest = {.tree_start = take_array<int32_t>(op, "tree_start"),
                       .feature = take_array<int32_t>(op, "feature"),
                       .left = take_array<int32_t>(op, "left"),
                       .right = take_array<int32_t>(op, "right"),
                       .threshold = take_array<double>(op, "threshold"),
                       .leaf_value = take_array<double>(op, "leaf_value")},
            .feature_min = take_array<double>(op, "feature_min"),
            .feature_max = take_array<double>(op, "feature_max"),
            .golden_features = take_array<float>(op, "golden_features"),
            .golden_scores = take_array<double>(op, "golden_scores"),
            .golden_start = take_array<int32_t>(op, "golden_start"),
            .golden_choice = take_array<int32_t>(op, "golden_choice")};
}

Op read_op(const std::string& name) {
    try {
        return parse_op(name);
    } catch (const Error& error) {
        refuse(error.what());
    }
}

std::shared_ptr<Selector> make_selector(std::string sku, int32_t sm_count, const std::map<std::string, py::dict>& ops,
                                        std::string stale_reason, bool has_own_features, bool has_own_heuristic) {
    std::map<Op, OpParts> parts;
    for (const auto& [name, op] : ops) parts.emplace(read_op(name), take_parts(op));
    Origin origin{.sku = std::move(sku),
                  .sm_count = sm_count,
                  .stale_reason = std::move(stale_reason),
                  .has_own_features = has_own_features,
                  .has_own_heuristic = has_own_heuristic};
    return std::make_shared<Selector>(std::move(origin), std::move(parts));
}

Choice make_choice(const Config& config, const std::string& source, std::string reason) {
    for (auto known : {Choice::Source::kExact, Choice::Source::kLearned, Choice::Source::kAnalytic})
        if (source == source_name(known))
            return {.config = config, .source = known, .reason = std::move(reason), .scored = {}, .scores = {}};
    throw Error(ErrorKind::kArgument, "source = " + quote(source) + ": must be 'exact', 'learned' or 'analytic'");
}

py::object choice_scores(const Choice& choice) {
    if (choice.scores.empty()) return py::none();
    py::dict out;
    for (size_t i = 0; i < choice.scores.size(); ++i) out[py::cast(choice.scored[i])] = choice.scores[i];
    return out;
}

const OpModel& require_model(const Selector& selector, const std::string& op) {
    const OpModel* model = selector.find_model(parse_op(op));
    if (model == nullptr) throw Error(ErrorKind::kModel, "the selector does not know " + op + "; export one that does");
    return *model;
}

void bind_choice(py::module_& m) {
    py::class_<Choice>(m, "Choice", "A chosen config with who chose it and why. Immutable.")
        .def(py::init(&make_choice), "config"_a, "source"_a, "reason"_a,
             "Describe a choice. Raises: ArgumentError for an unknown source.")
        .def_readonly("config", &Choice::config)
        .def_property_readonly(
            "source", [](const Choice& self) { return source_name(self.source); }, "'exact', 'learned' or 'analytic'.")
        .def_readonly("reason", &Choice::reason)
        .def_property_readonly(
            "scores", &choice_scores,
            "Config -> predicted log(time / time of the heuristic's pick), for those with the smallest estimates; "
            "infinite outside the training hull. None where no tree was asked.")
        .def("__repr__", [](const Choice& self) {
            return "Choice(" + to_string(self.config) + ", " + source_name(self.source) + ": " + self.reason + ")";
        });
}

void bind_selector_class(py::module_& m) {
    py::class_<Selector, std::shared_ptr<Selector>>(
        m, "Selector",
        "The native part of deep_gemm.selector.Selector: what one artefact says, and the choice from it.")
        .def(py::init(&make_selector), "sku"_a, "sm_count"_a, "ops"_a, py::kw_only(), "stale_reason"_a,
             "has_own_features"_a, "has_own_heuristic"_a,
             "Take over what an artefact says. `ops`: op kind -> its metadata and arrays by name. `stale_reason`: why "
             "the artefact must not be used, or ''. `has_own_features`, `has_own_heuristic`: whether the forest was "
             "trained on this package's features and against its heuristic. Raises: ModelError for values that would "
             "make a choice unsafe or that contradict each other.")
        .def_property_readonly("sku", &Selector::sku, "The GPU model that the artefact is for.")
        .def(
            "configs", [](const Selector& self, const std::string& op) { return require_model(self, op).configs; },
            "op"_a,
            "Return the configs of an op kind that its exact table and its quarantine name. Raises: ModelError.")
        .def("choose_config", &Selector::choose, "problem"_a, "device"_a, "kernel_hash"_a, "exact_key"_a,
             "Return a Choice as Selector.choose does. `exact_key`: the problem's key in the exact table, or None to "
             "leave the table out. Raises: DeviceError.")
        .def(
            "find_fault",
            [](const Selector& self, const std::string& op, const std::string& kernel_hash) {
                return self.find_fault(parse_op(op), kernel_hash);
            },
            "op"_a, "kernel_hash"_a,
            "Return why the library does not use the part of an op kind, or only its exact table: '' where it does, "
            "and where the artefact has no such part. Raises: ProblemError.")
        .def("choose_learned", &Selector::choose_learned, "problem"_a, "device"_a,
             "Return the Choice of the trees alone, whatever the device, the kernels and the heuristic. Raises: "
             "ModelError for an op kind that is not there, or other features.")
        .def("replay_golden", &Selector::replay_golden, "lanes"_a = FeatureTable::kMostLanes,
             "Return how many golden problems give other scores (bit by bit) or another choice than recorded. `lanes`: "
             "compare at most so many numbers at once, as far as this host can (16, 8, else 4).");
}

}  // namespace

void bind_selector(py::module_& m) {
    m.attr("NUM_RANKED") = kNumRanked;
    m.attr("MAX_RESIDUAL") = kMaxResidual;
    m.attr("HULL_SLACK") = kHullSlack;
    bind_choice(m);
    bind_selector_class(m);
}

}  // namespace deep_gemm
