#include "core/bind_fields.hpp"

#include <pybind11/gil_safe_call_once.h>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "core/python.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

std::string default_repr(const Field& field) {
    return py::repr(to_python(field, field.default_value)).cast<std::string>();
}

const char* type_name(const Field& field) {
    switch (field.type) {
        case FieldType::kInteger: return "int";
        case FieldType::kFlag: return "bool";
        default: return "str";
    }
}

}  // namespace

FieldNames::FieldNames(std::vector<const Field*> fields) : fields_(std::move(fields)) {
    for (size_t i = 0; i < fields_.size(); ++i) {
        names_.push_back(PyUnicode_InternFromString(fields_[i]->name));
        if (fields_[i]->is_required) required_.push_back(i);
    }
}

size_t FieldNames::find(py::handle name) const {
    for (size_t i = 0; i < names_.size(); ++i)
        if (name.ptr() == names_[i].ptr()) return i;
    for (size_t i = 0; i < names_.size(); ++i)
        if (PyUnicode_CompareWithASCIIString(name.ptr(), fields_[i]->name) == 0) return i;
    return names_.size();
}

std::vector<py::handle> FieldNames::place(const char* type, const py::args& args, const py::kwargs& kwargs) const {
    std::vector<py::handle> slots(fields_.size());
    if (args.size() > required_.size())
        throw Error(ErrorKind::kArgument, std::string(type) + "() takes at most " + std::to_string(required_.size()) +
                                              " arguments by position, not " + std::to_string(args.size()) +
                                              "; pass the rest by name");
    for (size_t i = 0; i < args.size(); ++i) slots[required_[i]] = PyTuple_GET_ITEM(args.ptr(), Py_ssize_t(i));
    PyObject *name, *value;
    for (Py_ssize_t position = 0; PyDict_Next(kwargs.ptr(), &position, &name, &value);) {
        const size_t index = find(name);
        if (index == fields_.size() || slots[index])
            throw Error(ErrorKind::kArgument,
                        std::string(type) + "() got " +
                            (index == fields_.size() ? "an unknown argument " : "two values of the argument ") +
                            short_repr(name) + "; its arguments are " + signature());
        slots[index] = value;
    }
    for (size_t index : required_)
        if (!slots[index])
            throw Error(ErrorKind::kArgument,
                        std::string(type) + "() lacks the argument '" + fields_[index]->name + "'; pass it");
    return slots;
}

std::string FieldNames::signature() const {
    std::string text = "(self";
    for (size_t index : required_) text += std::string(", ") + fields_[index]->name + ": " + type_name(*fields_[index]);
    text += ", *";
    for (const Field* field : fields_)
        if (!field->is_required)
            text += std::string(", ") + field->name + ": " + type_name(*field) + " = " + default_repr(*field);
    return text + ") -> None";
}

py::object to_python(const Field& field, int64_t value) {
    switch (field.type) {
        case FieldType::kWord:
            return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(field.words[size_t(value)]));
        case FieldType::kFlag: return py::bool_(value != 0);
        case FieldType::kDims: return py::str(compiled_dims_text(uint8_t(value)));
        default: return py::int_(value);
    }
}

std::string repr_argument(const Field& field, int64_t value) {
    if (value == field.default_value) return "";
    return std::string(", ") + field.name + "=" + py::repr(to_python(field, value)).cast<std::string>();
}

const IdentityFunctions& identity() {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<IdentityFunctions> storage;
    return storage
        .call_once_and_store_result([] {
            const py::module_ module = py::module_::import("deep_gemm.identity");
            return IdentityFunctions{module.attr("problem_json"), module.attr("problem_key"),
                                     module.attr("read_problem"), module.attr("config_json"),
                                     module.attr("config_key"),   module.attr("read_config")};
        })
        .get_stored();
}

}  // namespace deep_gemm
