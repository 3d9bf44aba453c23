// The few objects of torch that a call needs, looked up once.
#pragma once

#include <Python.h>

#include "runtime/dlpack.hpp"

namespace deep_gemm {

struct TorchAccess {
    PyTypeObject* tensor_type;
    PyTypeObject* parameter_type;
    PyObject* disabled_dispatch;  // torch.Tensor.__torch_dispatch__: what a subclass without its own dispatch inherits
    const dlpack::ExchangeApi* exchange;  // null where torch has none of a known version

    // Interned attribute names.
    PyObject* requires_grad;
    PyObject* is_neg;
    PyObject* is_grad_enabled;
    PyObject* torch_module;

    PyObject *float8_e4m3fn, *float32, *bfloat16;  // dtypes, of which there is one object each
};

// Import torch and look them up at the first call. Throws PythonError.
const TorchAccess& torch_access();

// Whether tensors of `type` are plain memory: torch.Tensor, nn.Parameter, or a subclass of them that inherits their
// dispatch (e.g. a serving framework's Parameter subclass).
bool is_plain_tensor_type(const TorchAccess& torch, PyTypeObject* type);

}  // namespace deep_gemm
