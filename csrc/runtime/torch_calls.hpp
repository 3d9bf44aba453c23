// What the runtime has torch do, in Python (deep_gemm/stream.py): memory of a call, the reference, and work that needs
// no kernel of ours. A stream handle of None means torch's current stream.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "runtime/gpu.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

// The handle of `stream` for these calls. Of a described tensor nobody can ask torch; it means no current stream.
pybind11::object stream_handle(void* stream, const TensorView& view);

// The operand as a tensor in the op's orientation; None where it is absent.
pybind11::object tensor_of(const Operand& operand);

const char* recipe_name(Recipe recipe);

// Compute `op` on `named` operands in plain torch.
void run_reference(Op op, const pybind11::dict& named, const pybind11::object& stream);

// Uninitialised memory of torch's allocator that belongs to the stream: rows * columns bytes, as FP8.
pybind11::object empty_fp8(int64_t rows, int64_t columns, int ordinal, const pybind11::object& stream);

// `ks` as an int32 tensor on the GPU. Throws the Python ArgumentError while the stream is captured.
pybind11::object make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, const pybind11::object& stream);

// D = C, of the same shape.
void copy_matrices(const Operand& d, const Operand& c, const pybind11::object& stream);

}  // namespace deep_gemm
