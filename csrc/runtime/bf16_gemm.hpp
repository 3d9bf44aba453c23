// The BF16 products: the public functions bf16_gemm_{nt,nn,tn,tt}.
#pragma once

#include <Python.h>

#include <span>

namespace deep_gemm {

// Definitions with docstrings and text signatures, for the life of the process; METH_FASTCALL | METH_KEYWORDS.
std::span<PyMethodDef> bf16_gemm_methods();

}  // namespace deep_gemm
