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

std::string short_repr(Borrowed object) {
    try {
        const std::string text = utf8_of(Reference::take(PyObject_Repr(object)).get());
        return text.size() <= kMaxReprBytes ? text : std::string(clip_utf8(text, kMaxReprBytes - 3)) + "...";
    } catch (const PythonError&) {
        PyErr_Clear();
        return "<unprintable>";
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
