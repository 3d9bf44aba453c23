// _C.Problem and _C.Config.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/bind_fields.hpp"
#include "core/bindings.hpp"
#include "core/config.hpp"
#include "core/error.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"
#include "core/py_integers.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace deep_gemm {
namespace {

// The op kind as the first argument of a problem.
constexpr Field kOpField = {{"op", 0, kNumOps - 1, 0, true}, FieldType::kWord, FieldRole::kVariant, {}, "Op kind."};

const FieldNames& problem_names() {
    static const FieldNames& names = *new FieldNames([] {
        std::vector<const Field*> fields = {&kOpField};
        for (const ProblemField& field : kProblemFields) fields.push_back(&field);
        return fields;
    }());
    return names;
}

const FieldNames& config_names() {
    static const FieldNames& names = *new FieldNames([] {
        std::vector<const Field*> fields;
        for (const ConfigField& field : kConfigFields) fields.push_back(&field);
        return fields;
    }());
    return names;
}

// What as_dict gave, as keywords of a constructor: a copy, because reading a value may run code that changes the dict.
py::kwargs copy_state(const py::object& state) {
    py::dict copy;
    if (!py::isinstance<py::dict>(state) || PyDict_Update(copy.ptr(), state.ptr()) != 0) {
        PyErr_Clear();
        throw Error(ErrorKind::kArgument, "state = " + short_repr(state) +
                                              ": must be the dict or the tuple of a pickle; unpickle what was "
                                              "pickled");
    }
    return py::reinterpret_steal<py::kwargs>(copy.release());
}

std::string_view checked_text(py::handle value, const Field& field) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &size) : nullptr;
    if (text != nullptr) return {text, size_t(size)};
    PyErr_Clear();
    throw Error(ErrorKind::kArgument,
                std::string(field.name) + " = " + short_repr(value) + ": must be text; pass a str");
}

bool checked_bool(py::handle value, const char* name) {
    if (!PyBool_Check(value.ptr()))
        throw Error(ErrorKind::kProblem,
                    std::string(name) + " = " + short_repr(value) + ": must be a bool; pass True or False");
    return value.ptr() == Py_True;
}

int64_t read_value(const ProblemField& field, py::handle value) {
    switch (field.type) {
        case FieldType::kWord: return parse_word(field, checked_text(value, field));
        case FieldType::kFlag: return checked_bool(value, field.name);
        case FieldType::kDims: return parse_compiled_dims(checked_text(value, field));
        default: return checked_integer(value, field, ErrorKind::kProblem);
    }
}

Problem make_problem(const py::args& args, const py::kwargs& kwargs) {
    const auto given = problem_names().place("Problem", args, kwargs);
    Problem problem{.op = parse_op(checked_text(given[0], kOpField))};
    for (size_t i = 0; i < kProblemFields.size(); ++i)
        if (const py::handle value = given[i + 1]) kProblemFields[i].set(problem, read_value(kProblemFields[i], value));
    check_problem(problem);
    return problem;
}

Problem with_signals(Problem problem) {
    if (!op_kind(problem.op).has_room())
        throw Error(ErrorKind::kProblem,
                    std::string(op_name(problem.op)) + ": signals are for masked groups; pass such a problem");
    problem.has_signals = true;
    return problem;
}

py::dict problem_dict(const Problem& problem, bool with_defaults) {
    py::dict out;
    const FieldNames& names = problem_names();
    out[names.name(0)] = py::str(op_name(problem.op));
    for (size_t i = 0; i < kProblemFields.size(); ++i) {
        const ProblemField& field = kProblemFields[i];
        const int64_t value = field.get(problem);
        if (with_defaults || field.is_required || value != field.default_value)
            out[names.name(i + 1)] = to_python(field, value);
    }
    return out;
}

std::string problem_repr(const Problem& problem) {
    std::string text = "Problem('" + std::string(op_name(problem.op)) + '\'';
    for (const ProblemField& field : kProblemFields)
        text +=
            field.is_required ? ", " + std::to_string(field.get(problem)) : repr_argument(field, field.get(problem));
    return text + ')';
}

void bind_value(py::class_<Problem>& problem, const ProblemField& field) {
    switch (field.type) {
        case FieldType::kWord:
            problem.def_property_readonly(
                field.name, [&field](const Problem& self) { return field.words[size_t(field.get(self))]; },
                field.meaning);
            break;
        case FieldType::kFlag:
            problem.def_property_readonly(
                field.name, [&field](const Problem& self) { return field.get(self) != 0; }, field.meaning);
            break;
        case FieldType::kDims:
            problem.def_property_readonly(
                field.name, [&field](const Problem& self) { return value_text(field, self); }, field.meaning);
            break;
        default:
            problem.def_property_readonly(
                field.name, [&field](const Problem& self) { return field.get(self); }, field.meaning);
    }
}

int64_t checked_field(std::string_view name, const py::object& value) {
    return read_value(*find_problem_field(name), value);
}

template <typename Class>
void bind_constructor(Class& bound, const FieldNames& names, auto make, const char* doc) {
    py::options options;
    options.disable_function_signatures();
    bound.def(py::init(make), ("__init__" + names.signature() + "\n\n" + doc).c_str());
}

void bind_problem_identity(py::class_<Problem>& problem) {
    problem
        .def_property_readonly(
            "key", [](const py::object& self) -> py::str { return identity().problem_key(self); },
            "SHA-256 of to_json(), in hexadecimal.")
        .def(
            "to_json", [](const py::object& self) -> py::str { return identity().problem_json(self); },
            "Return canonical JSON: sorted keys, fields at their default left out.")
        .def_static(
            "from_json", [](const py::str& text) { return identity().read_problem(text).cast<Problem>(); }, "text"_a,
            "Read what to_json wrote. Raises: ProblemError.")
        .def(
            "__eq__", [](const Problem& self, const Problem& other) { return self == other; }, py::is_operator())
        .def("__hash__", [](const Problem& self) { return hash_value(self); })
        .def(py::pickle([](const Problem& self) { return problem_dict(self, false); },
                        [](const py::object& state) {
                            // Pickles of version 0.1.0 and before hold a tuple of the JSON text.
                            if (py::isinstance<py::tuple>(state))
                                return identity().read_problem(state[py::int_(0)]).cast<Problem>();
                            return make_problem(py::args(), copy_state(state));
                        }));
}

Config make_python_config(const py::args& args, const py::kwargs& kwargs) {
    const auto given = config_names().place("Config", args, kwargs);
    ConfigValues values;
    for (size_t i = 0; i < kNumConfigFields; ++i)
        values[i] =
            given[i] ? checked_integer(given[i], kConfigFields[i], ErrorKind::kConfig) : kConfigFields[i].default_value;
    return make_config(values);
}

py::dict config_dict(const Config& config, bool with_defaults) {
    py::dict out;
    const ConfigValues values = config_values(config);
    for (size_t i = 0; i < kNumConfigFields; ++i)
        if (with_defaults || kConfigFields[i].is_required || values[i] != kConfigFields[i].default_value)
            out[config_names().name(i)] = py::int_(values[i]);
    return out;
}

std::string config_repr(const Config& config) {
    std::string required, others;
    const ConfigValues values = config_values(config);
    for (size_t i = 0; i < kNumConfigFields; ++i)
        if (kConfigFields[i].is_required)
            required += (required.empty() ? "" : ", ") + std::to_string(values[i]);
        else
            others += repr_argument(kConfigFields[i], values[i]);
    return "Config(" + required + others + ')';
}

void bind_config_identity(py::class_<Config>& config) {
    config
        .def(
            "key",
            [](const py::object& self, const std::string& op) -> py::str { return identity().config_key(self, op); },
            "op"_a, "Return the SHA-256 of {fields, op} in canonical JSON, in hexadecimal. Raises: ProblemError.")
        .def(
            "to_json", [](const py::object& self) -> py::str { return identity().config_json(self); },
            "Return the fields as canonical JSON, defaults left out.")
        .def_static(
            "from_json", [](const py::str& text) { return identity().read_config(text).cast<Config>(); }, "text"_a,
            "Read what to_json wrote. Raises: ConfigError.")
        .def(
            "__eq__", [](const Config& self, const Config& other) { return self == other; }, py::is_operator())
        .def("__hash__", [](const Config& self) { return hash_value(self); })
        .def(py::pickle([](const Config& self) { return config_dict(self, false); },
                        [](const py::object& state) {
                            if (py::isinstance<py::tuple>(state))
                                return identity().read_config(state[py::int_(0)]).cast<Config>();
                            return make_python_config(py::args(), copy_state(state));
                        }));
}

}  // namespace

void bind_problem(py::module_& m) {
    py::class_<Problem> problem(
        m, "Problem",
        "What the host knows when an op is called: the op kind, and the fields of PROBLEM_FIELDS. Immutable.");
    bind_constructor(problem, problem_names(), &make_problem,
                     "Describe a problem. Raises: ProblemError for an unknown op kind, a field outside its range or "
                     "words, or fields that contradict each other.");
    problem.def_property_readonly("op", [](const Problem& self) { return std::string(op_name(self.op)); }, "Op kind.");
    for (const ProblemField& field : kProblemFields) bind_value(problem, field);
    problem
        .def("as_dict", &problem_dict, "with_defaults"_a = true,
             "Return the op kind and all fields, or of the fields only those that are not at their default.")
        .def_property_readonly(
            "has_signals", [](const Problem& self) { return self.has_signals; },
            "Whether the kernel says which rows are stored; no field, so that neither as_dict nor to_json has it.")
        .def("with_signals", &with_signals,
             "Return the problem of the same call with signals. Raises: ProblemError for groups that are not masked.")
        .def("__str__", [](const Problem& self) { return to_string(self); })
        .def("__repr__", &problem_repr);
    bind_problem_identity(problem);
    m.def("kernel_identity", &kernel_identity, "problem"_a,
          "Return what a kernel for `problem` is compiled for besides its config: equal for all problems that the "
          "kernel serves.");
    m.def("rows_per_group", &rows_per_group, "problem"_a,
          "Return the rows of one group on average, as far as the host knows: all of m for dense products and groups "
          "of K.");
    m.def("find_masked_twin", &find_masked_twin, "problem"_a,
          "Return the masked problem whose tiles serve `problem`, where it is of groups with ends that are expected to "
          "hold fewer rows than the alignment; None for all other problems, and where no masked product has such "
          "operands.");
    m.def(
        "hold_expected_m",
        [](const Problem& problem, const py::object& rows) {
            return hold_expected_m(problem, checked_field("expected_m", rows));
        },
        "problem"_a, "rows"_a,
        "Return the expected rows of a group as calls like `problem` hold them: within 1..m, three significant bits; "
        "of "
        "groups with ends the alignment where they fill it. Raises: ProblemError.");
    m.def(
        "round_expected_m",
        [](const py::object& expected_m, const py::object& rows) {
            return round_expected_m(checked_field("expected_m", expected_m), checked_field("m", rows));
        },
        "expected_m"_a, "m"_a,
        "Return the expected rows of a group as calls round them for a problem: within 1..m, three significant "
        "bits. Raises: ProblemError.");
}

void bind_config(py::module_& m) {
    py::class_<Config> config(
        m, "Config",
        "How an op is carried out: the fields of CONFIG_FIELDS. Immutable; is_legal says whether it may run.");
    bind_constructor(config, config_names(), &make_python_config,
                     "Describe a config. Raises: ConfigError for a field that is no integer within its range.");
    for (const ConfigField& field : kConfigFields)
        config.def_property_readonly(
            field.name, [&field](const Config& self) { return self.*field.member; }, field.meaning);
    config.def_property_readonly("column_side", &column_side, "The side of the tile that the MMA's columns take.");
    config
        .def("as_dict", &config_dict, "with_defaults"_a = true,
             "Return all fields, or only those that are not at their default.")
        .def("__str__", [](const Config& self) { return to_string(self); })
        .def("__repr__", &config_repr);
    bind_config_identity(config);
}

}  // namespace deep_gemm
