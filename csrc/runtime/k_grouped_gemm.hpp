// The products whose K groups divide: k_grouped_fp8_gemm_{nt,tn}_contiguous and k_grouped_bf16_gemm_tn_contiguous.
#pragma once

#include <Python.h>

#include <span>

namespace deep_gemm {

// As fp8_gemm_methods.
std::span<PyMethodDef> k_grouped_gemm_methods();

}  // namespace deep_gemm
