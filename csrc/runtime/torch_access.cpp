#include "runtime/torch_access.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <utility>

namespace py = pybind11;

namespace deep_gemm {
namespace {

const dlpack::ExchangeApi* find_exchange_api(py::handle tensor_type) {
    py::object capsule = py::getattr(tensor_type, dlpack::kTypeAttribute, py::none());
    if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsuleName)) return nullptr;
    auto* exchange = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName));
    while (exchange != nullptr && exchange->major != dlpack::kMajorVersion) exchange = exchange->previous;
    const bool is_usable =
        exchange != nullptr && exchange->tensor_from_object != nullptr && exchange->current_work_stream != nullptr;
    return is_usable ? exchange : nullptr;
}

PyObject* intern(const char* text) {
    PyObject* name = PyUnicode_InternFromString(text);
    if (name == nullptr) throw py::error_already_set();
    return name;
}

PyTypeObject* take_type(py::object type) {
    if (!PyType_Check(type.ptr())) throw py::type_error("torch.Tensor is not a type");
    return reinterpret_cast<PyTypeObject*>(type.release().ptr());
}

// The references are kept for the life of the process.
TorchAccess look_up() {
    py::module_ torch = py::module_::import("torch");
    py::object tensor = torch.attr("Tensor");
    TorchAccess access{};
    access.exchange = find_exchange_api(tensor);
    access.disabled_dispatch = py::object(tensor.attr("__torch_dispatch__")).release().ptr();
    access.tensor_type = take_type(tensor);
    access.parameter_type = take_type(torch.attr("nn").attr("Parameter"));
    access.requires_grad = intern("requires_grad");
    access.is_neg = intern("is_neg");
    access.is_grad_enabled = intern("is_grad_enabled");
    access.torch_module = torch.release().ptr();
    return access;
}

bool inherits_dispatch(const TorchAccess& torch, PyTypeObject* type) {
    if (!PyType_IsSubtype(type, torch.tensor_type)) return false;
    py::object dispatch = py::getattr(py::handle(reinterpret_cast<PyObject*>(type)), "__torch_dispatch__", py::none());
    return dispatch.ptr() == torch.disabled_dispatch;
}

}  // namespace

// No static initialisation guard: importing torch may release the GIL, and a second thread would wait on the guard
// holding it.
const TorchAccess& torch_access() {
    static const TorchAccess* access = nullptr;
    if (access == nullptr) {
        auto* found = new TorchAccess(look_up());
        if (access == nullptr) access = found;
    }
    return *access;
}

bool is_plain_tensor_type(const TorchAccess& torch, PyTypeObject* type) {
    if (type == torch.tensor_type || type == torch.parameter_type) return true;
    // A model meets a handful of Parameter subclasses. The types are kept alive, so an address never names another
    // type.
    static std::array<PyTypeObject*, 8> known_plain{};
    static size_t next = 0;
    for (PyTypeObject* known : known_plain)
        if (known == type) return true;
    if (!inherits_dispatch(torch, type)) return false;
    Py_INCREF(type);
    Py_XDECREF(std::exchange(known_plain[next], type));
    next = (next + 1) % known_plain.size();
    return true;
}

}  // namespace deep_gemm
