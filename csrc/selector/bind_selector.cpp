// The Python faces of the selector and its choices.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bindings.hpp"
#include "core/error.hpp"
#include "module.hpp"
#include "selector/selector.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

py::object to_python(const JsonValue& value) {
    switch (value.type) {
        case JsonValue::Type::kNull: return py::none();
        case JsonValue::Type::kBool: return py::bool_(value.boolean);
        case JsonValue::Type::kInt: return py::int_(value.integer);
        case JsonValue::Type::kDouble: return py::float_(value.number);
        case JsonValue::Type::kString: return py::str(value.string);
        case JsonValue::Type::kArray: {
            py::list out;
            for (const JsonValue& item : value.array) out.append(to_python(item));
            return out;
        }
        case JsonValue::Type::kObject: {
            py::dict out;
            for (const auto& [name, member] : value.object) out[py::str(name)] = to_python(member);
            return out;
        }
    }
    return py::none();
}

SelectionMode parse_mode(const std::string& mode) {
    if (mode == "auto") return SelectionMode::kAuto;
    if (mode == "model") return SelectionMode::kModel;
    throw Error(ErrorKind::kArgument, "mode = '" + mode.substr(0, 32) + "': must be 'auto' or 'model'");
}

Choice make_choice(const Config& config, const std::string& source, std::string reason) {
    for (auto known : {Choice::Source::kExact, Choice::Source::kLearned, Choice::Source::kAnalytic})
        if (source == source_name(known))
            return {.config = config, .source = known, .reason = std::move(reason), .scored = {}, .scores = {}};
    throw Error(ErrorKind::kArgument,
                "source = '" + source.substr(0, 32) + "': must be 'exact', 'learned' or 'analytic'");
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

std::vector<Config> quarantined_configs(const OpModel& model) {
    std::vector<Config> out;
    for (size_t i = 0; i < model.configs.size(); ++i)
        if (model.is_quarantined[i]) out.push_back(model.configs[i]);
    return out;
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
            "Portfolio config -> predicted log(time / time of the heuristic's pick); None where no forest was asked.")
        .def("__repr__", [](const Choice& self) {
            return "Choice(" + to_string(self.config) + ", " + source_name(self.source) + ": " + self.reason + ")";
        });
}

void bind_selector_class(py::module_& m) {
    py::class_<Selector, std::shared_ptr<Selector>>(
        m, "Selector", "The learned choice of a config, from one artefact of one SKU. Immutable.")
        .def_static(
            "load", [](const py::bytes& content) { return std::make_shared<Selector>(std::string_view(content)); },
            "content"_a,
            "Read an artefact's bytes. Raises: ModelError for anything that is not a well-formed artefact.")
        .def_property_readonly("sku", &Selector::sku)
        .def_property_readonly("metadata", [](const Selector& self) { return to_python(self.metadata()); })
        .def(
            "portfolio",
            [](const Selector& self, const std::string& op) {
                const auto span = require_model(self, op).portfolio();
                return std::vector<Config>(span.begin(), span.end());
            },
            "op"_a, "Return the configs that the forest of an op kind scores, in its order.")
        .def(
            "configs", [](const Selector& self, const std::string& op) { return require_model(self, op).configs; },
            "op"_a, "Return all configs of an op kind, the portfolio first.")
        .def(
            "quarantined",
            [](const Selector& self, const std::string& op) { return quarantined_configs(require_model(self, op)); },
            "op"_a, "Return the configs never to be chosen.")
        .def(
            "choose",
            [](const Selector& self, const Problem& problem, const Device& device, const std::string& mode,
               const std::string& kernel_hash) {
                const SelectionMode parsed = parse_mode(mode);
                const uint64_t key = parsed == SelectionMode::kAuto ? key_prefix(problem) : 0;
                return self.choose(problem, key, device, parsed, kernel_hash);
            },
            "problem"_a, "device"_a, "mode"_a = "auto", "kernel_hash"_a = "",
            "Return a Choice that is legal on `device`; every doubt leads to the heuristic. mode 'model' leaves out "
            "the exact table; an "
            "empty kernel_hash is unknown. Raises: DeviceError, ArgumentError.")
        .def("scores", &Selector::scores, "problem"_a, "device"_a,
             "Return the forest's scores of the portfolio, without guards. Raises: ModelError.")
        .def(
            "decide",
            [](const Selector& self, const std::string& op, const std::vector<double>& features) {
                const Decision decision = self.decide(parse_op(op), features);
                return py::make_tuple(decision.config, decision.reason, decision.scores);
            },
            "op"_a, "features"_a,
            "Return (config index or -1 for the heuristic, reason, scores) for a feature vector, guards applied: what "
            "golden_choice "
            "records. Raises: ModelError.")
        .def("replay_golden", &Selector::replay_golden,
             "Return how many golden vectors give other scores (bit by bit) or another choice than recorded.");
}

}  // namespace

void bind_selector(py::module_& m) {
    bind_choice(m);
    bind_selector_class(m);
}

}  // namespace deep_gemm
