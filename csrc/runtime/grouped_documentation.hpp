// Docstrings of the grouped ops; the first line is the signature that inspect.signature reads.
#pragma once

#include <string>

#include "core/problem.hpp"

namespace deep_gemm {

std::string m_grouped_documentation(const std::string& name, Op op, bool is_b_transposed);
std::string k_grouped_documentation(const std::string& name, Op op, GroupLayout layout);

}  // namespace deep_gemm
