// The products whose rows groups divide: m_grouped_{fp8,bf16}_gemm_{nt,nn}_contiguous and
// m_grouped_{fp8,bf16}_gemm_nt_masked.
#pragma once

#include <Python.h>

#include <span>

namespace deep_gemm {

// As fp8_gemm_methods.
std::span<PyMethodDef> m_grouped_gemm_methods();

}  // namespace deep_gemm
