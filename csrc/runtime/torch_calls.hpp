// What the runtime asks torch to do, in Python (deep_gemm/stream.py): memory of a call, the reference, and work that
// needs no kernel of ours. A stream handle of None means torch's current stream. All throw PythonError.
#pragma once

#include <vector>

#include "core/python.hpp"
#include "runtime/call.hpp"

namespace deep_gemm {

// The handle of `stream` for these calls. torch knows nothing of described tensors, so theirs is never None.
Reference stream_handle(void* stream, const TensorView& view);

// The operand as a tensor in the op's orientation; None where it is absent.
Reference tensor_of(const Operand& operand);

// Set `named[name]` in a dict of arguments.
void set_item(PyObject* named, const char* name, const Reference& value);
void set_recipe(PyObject* named, Recipe recipe);

// Compute `op` on the `named` operands in plain torch.
void run_reference(Op op, PyObject* named, PyObject* stream);

// The same with the vendor's library, on a GPU; of the op kinds that vendor.py has.
void run_vendor(Op op, PyObject* named, PyObject* stream);

// Uninitialised memory of torch's allocator that belongs to the stream: rows * columns bytes, as FP8.
Reference empty_fp8(int64_t rows, int64_t columns, int ordinal, PyObject* stream);

// `ks` as an int32 tensor on the CPU, and on a GPU. The latter throws the Python ArgumentError while the stream is
// captured.
Reference make_cpu_tensor(const std::vector<int64_t>& ks);
Reference make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, PyObject* stream);

// D = C, of the same shape.
void copy_matrices(const Operand& d, const Operand& c, PyObject* stream);

}  // namespace deep_gemm
