// pybind11 raises a plain TypeError for arguments that no caster takes, with the types as C++ knows them and the repr
// of all values. All of its functions are called by one function, its dispatcher, so that this is mended there.
#include "core/bind_errors.hpp"

#include <cstring>
#include <string>

#include "core/error.hpp"
#include "core/python.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

using Record = py::detail::function_record;
using Dispatcher = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

Dispatcher pybind_dispatcher = nullptr;  // the same for all functions of this module; set once, by its import

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
}

// `name`, or Class.name of a method; of a constructor the class.
std::string call_name(const Record& record) {
    if (!PyType_Check(record.scope.ptr())) return record.name;
    const std::string type = py::str(record.scope.attr("__name__"));
    return record.is_constructor ? type : type + '.' + record.name;
}

// (problem: Problem, device: Device): the parameters of a signature with the types as Python knows them.
std::string parameters_of(const Record& record) {
    std::string text = record.signature;
    text = text.substr(0, text.rfind(" -> "));
    text.erase(0, text.find('('));
    if (record.is_method) {
        const size_t end = text.find(", ");
        text = end == std::string::npos ? "()" : '(' + text.substr(end + 2);
    }
    replace_all(text, "deep_gemm._C.", "");
    replace_all(text, "collections.abc.", "");
    replace_all(text, "typing.SupportsInt | typing.SupportsIndex", "int");
    replace_all(text, "typing.SupportsFloat | typing.SupportsIndex", "float");
    return text;
}

constexpr size_t kMaxBytes = 800;  // of arguments that a message shows, of which a call may have any number

// (1, device='h200'): what was given, without the instance of a method.
std::string arguments_of(const Record& record, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    std::string text;
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = record.is_method ? 1 : 0; i < count + named; ++i) {
        if (!text.empty()) text += ", ";
        if (text.size() > kMaxBytes) return '(' + text + "...)";
        if (i >= count) text += utf8_of(PyTuple_GET_ITEM(names, i - count)) + '=';
        text += short_repr(arguments[i]);
    }
    return '(' + text + ')';
}

Error make_error(const Record& record, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    const std::string name = call_name(record);
    std::string rule;
    for (const Record* overload = &record; overload != nullptr; overload = overload->next)
        rule += (rule.empty() ? "" : " or ") + name + parameters_of(*overload);
    return Error(ErrorKind::kArgument, name + arguments_of(record, arguments, count, names) + ": must be called as " +
                                           rule + "; pass arguments of these types");
}

// Whether the pending error is what pybind11 says of arguments that a function does not take.
bool is_refusal(const Record& record) {
    if (PyErr_Occurred() != PyExc_TypeError) return false;  // no class derived from it
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const std::string text = str(value), name = record.name;
    PyErr_Restore(type, value, trace);
    return text.starts_with(name + "(): incompatible ") || text.starts_with("__init__(self, ...) called with");
}

// Whether a parameter may be a tensor, or a dict, which may nest deeper than holds_tensor looks.
bool takes_any(const Record& record) {
    for (const Record* overload = &record; overload != nullptr; overload = overload->next)
        for (const char* type : {": object", "dict", "*args"})
            if (std::strstr(overload->signature, type) != nullptr) return true;
    return false;
}

// pybind11 would print the tensors that it refuses, and with them memory that may be freed.
bool is_tensor_where_none_belongs(const Record& record, PyObject* const* arguments, Py_ssize_t count) {
    if (takes_any(record)) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
        if (holds_tensor(arguments[i])) return true;
    return false;
}

PyObject* dispatch(PyObject* self, PyObject* const* arguments, Py_ssize_t flagged, PyObject* names) {
    const Record& record = *py::detail::function_record_ptr_from_PyObject(self);
    const Py_ssize_t count = PyVectorcall_NARGS(size_t(flagged)),
                     named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    try {
        if (!is_tensor_where_none_belongs(record, arguments, count + named)) {
            PyObject* result = pybind_dispatcher(self, arguments, flagged, names);
            if (result != nullptr || !is_refusal(record)) return result;
            PyErr_Clear();
        }
        if (record.is_operator) return Py_NewRef(Py_NotImplemented);
        set_python_error(make_error(record, arguments, count, names));
    } catch (const PythonError&) {  // Python's error is set already
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    }
    return nullptr;
}

void take_over(py::handle bound) {
    const py::handle function = py::detail::get_function(bound);
    if (!PyCFunction_Check(function.ptr())) return;
    if (py::detail::function_record_ptr_from_PyObject(PyCFunction_GET_SELF(function.ptr())) == nullptr) return;
    PyMethodDef& definition = *reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
    const auto original = reinterpret_cast<Dispatcher>(reinterpret_cast<void (*)()>(definition.ml_meth));
    const bool has_this_form = definition.ml_flags == (METH_FASTCALL | METH_KEYWORDS);  // pybind11 3.0 had another
    if (original == &dispatch || !has_this_form) return;
    pybind_dispatcher = original;
    definition.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&dispatch));
}

}  // namespace

void type_errors_of_calls(py::module_& m) {
    for (const auto& [name, value] : py::dict(m.attr("__dict__"))) {
        take_over(value);
        if (!PyType_Check(value.ptr())) continue;
        for (const auto& [method, unused] : py::dict(value.attr("__dict__"))) take_over(value.attr(method));
    }
}

}  // namespace deep_gemm
