#include "runtime/torch_access.hpp"

#include <array>
#include <utility>

#include "core/python.hpp"

namespace deep_gemm {
namespace {

const dlpack::ExchangeApi* find_exchange_api(PyObject* tensor_type) {
    const Reference capsule = Reference::steal(PyObject_GetAttrString(tensor_type, dlpack::kTypeAttribute));
    PyErr_Clear();
    if (!PyCapsule_IsValid(capsule.get(), dlpack::kCapsuleName)) return nullptr;
    auto* exchange = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.get(), dlpack::kCapsuleName));
    while (exchange != nullptr && exchange->major != dlpack::kMajorVersion) exchange = exchange->previous;
    const bool is_usable =
        exchange != nullptr && exchange->tensor_from_object != nullptr && exchange->current_work_stream != nullptr;
    return is_usable ? exchange : nullptr;
}

PyObject* intern(const char* text) { return Reference::take(PyUnicode_InternFromString(text)).release(); }

PyTypeObject* take_type(Reference type) {
    if (!PyType_Check(type.get())) {
        PyErr_SetString(PyExc_TypeError, "torch.Tensor is not a type");
        throw PythonError();
    }
    return reinterpret_cast<PyTypeObject*>(type.release());
}

// The references are kept for the life of the process.
TorchAccess look_up() {
    Reference torch = Reference::take(PyImport_ImportModule("torch"));
    Reference tensor = import_attribute("torch", "Tensor");
    TorchAccess access{};
    access.exchange = find_exchange_api(tensor.get());
    access.disabled_dispatch = Reference::take(PyObject_GetAttrString(tensor.get(), "__torch_dispatch__")).release();
    access.tensor_type = take_type(std::move(tensor));
    access.parameter_type = take_type(import_attribute("torch.nn", "Parameter"));
    access.requires_grad = intern("requires_grad");
    access.is_neg = intern("is_neg");
    access.is_grad_enabled = intern("is_grad_enabled");
    access.float8_e4m3fn = Reference::take(PyObject_GetAttrString(torch.get(), "float8_e4m3fn")).release();
    access.float32 = Reference::take(PyObject_GetAttrString(torch.get(), "float32")).release();
    access.bfloat16 = Reference::take(PyObject_GetAttrString(torch.get(), "bfloat16")).release();
    access.torch_module = torch.release();
    return access;
}

bool inherits_dispatch(const TorchAccess& torch, PyTypeObject* type) {
    if (!PyType_IsSubtype(type, torch.tensor_type)) return false;
    const Reference dispatch =
        Reference::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__torch_dispatch__"));
    PyErr_Clear();
    return dispatch.get() == torch.disabled_dispatch;
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
