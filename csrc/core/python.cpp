#include "core/python.hpp"

#include "core/text.hpp"

namespace deep_gemm {
namespace {

constexpr size_t kMaxReprBytes = 80;

const char* error_class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::kProblem: return "ProblemError";
        case ErrorKind::kConfig: return "ConfigError";
        case ErrorKind::kDtype: return "DtypeError";
        case ErrorKind::kShape: return "ShapeError";
        case ErrorKind::kLayout: return "LayoutError";
        case ErrorKind::kDevice: return "DeviceError";
        case ErrorKind::kArgument: return "ArgumentError";
        case ErrorKind::kLaunch: return "LaunchError";
        case ErrorKind::kModel: return "ModelError";
    }
    return "DeepGemmError";
}

}  // namespace

Reference import_attribute(const char* module, const char* name) {
    const Reference imported = Reference::take(PyImport_ImportModule(module));
    return Reference::take(PyObject_GetAttrString(imported.get(), name));
}

std::string utf8_of(PyObject* text) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == nullptr) throw PythonError();
    return {bytes, size_t(size)};
}

std::string str(PyObject* object) { return utf8_of(Reference::take(PyObject_Str(object)).get()); }

namespace {

constexpr int kMaxReprDepth = 4;

bool holds_tensor(PyObject* object, int depth);

bool has_tensor_in(PyObject* sequence, int depth) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)  // a question may change a list
        if (holds_tensor(Reference::borrow(PySequence_Fast_GET_ITEM(sequence, i)).get(), depth)) return true;
    return false;
}

bool holds_tensor(PyObject* object, int depth) {
    if (depth == 0) return true;
    if (PyTuple_Check(object) || PyList_Check(object)) return has_tensor_in(object, depth - 1);
    if (PyDict_Check(object) && has_tensor_in(Reference::take(PyDict_Values(object)).get(), depth - 1)) return true;
    if (PyDict_Check(object) || PyAnySet_Check(object))
        return has_tensor_in(Reference::take(PySequence_List(object)).get(), depth - 1);
    // Every argument of every call is asked: an attribute that is missing costs ten times as much, with its exception.
    static PyObject* const name = PyUnicode_InternFromString("untyped_storage");
    if (name == nullptr) throw PythonError();
    return _PyType_Lookup(Py_TYPE(object), name) != nullptr;
}

}  // namespace

bool holds_tensor(Borrowed object) { return holds_tensor(object, kMaxReprDepth); }

std::string short_repr(Borrowed object) {
    try {
        if (holds_tensor(object)) return std::string("an object of type ") + Py_TYPE(object)->tp_name;
        const std::string text = utf8_of(Reference::take(PyObject_Repr(object)).get());
        return text.size() <= kMaxReprBytes ? text : std::string(clip_utf8(text, kMaxReprBytes - 3)) + "...";
    } catch (const PythonError&) {
        PyErr_Clear();
        return "<unprintable>";
    }
}

std::string take_error_text() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const Reference kept[] = {Reference::steal(type), Reference::steal(value), Reference::steal(trace)};
    if (value == nullptr) return "unknown error";
    try {
        const std::string text = str(value);
        return text.substr(0, text.find('\n'));
    } catch (const PythonError&) {
        PyErr_Clear();
        return "unknown error";
    }
}

void set_python_error(const Error& error) {
    try {
        const Reference cls = import_attribute("deep_gemm.errors", error_class_name(error.kind()));
        PyErr_SetString(cls.get(), error.what());
    } catch (const PythonError&) {
        // Python says why the class cannot be found.
    }
}

}  // namespace deep_gemm
