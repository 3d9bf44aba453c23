// The FP8 products: the public functions fp8_gemm_{nt,nn,tn,tt} and fp8_gemm_nt_skip_head_mid.
#pragma once

#include <Python.h>

#include <span>

namespace deep_gemm {

// Definitions with docstrings and text signatures, for the life of the process; METH_FASTCALL | METH_KEYWORDS.
std::span<PyMethodDef> fp8_gemm_methods();

}  // namespace deep_gemm
