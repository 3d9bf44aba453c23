// Docstrings of the C functions; the first line is the signature that inspect.signature reads.
#pragma once

#include <string>

#include "runtime/gemm_op.hpp"

namespace deep_gemm {

std::string fp8_gemm_documentation(const MemoryLayout& layout);
std::string skip_head_mid_documentation();
std::string bf16_gemm_documentation(const MemoryLayout& layout);

}  // namespace deep_gemm
