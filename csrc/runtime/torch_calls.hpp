// What the runtime asks torch to do, in Python (deep_gemm/stream.py): memory of a call, the reference, and work that
// needs no kernel of ours. A stream handle of None means torch's current stream. All throw PythonError.
#pragma once

#include <vector>

#include "core/python.hpp"
#include "runtime/call.hpp"
#include "runtime/gpu.hpp"

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

// Memory that was taken: a tensor, read once.
struct TakenMemory {
    Reference tensor;
    TensorView view;
};

// Uninitialised memory of torch's allocator on `gpu`, which belongs to torch's current stream there. `shape` and
// `strides` are tuples of ints. During stream capture the memory is the graph's.
TakenMemory empty_strided(const Gpu& gpu, PyObject* shape, PyObject* strides, PyObject* dtype);

// Take such memory by `function(shape, strides, dtype)`, on the current GPU; None: by the one of deep_gemm.stream.
void set_allocator(PyObject* function);

// Uninitialised memory that belongs to the stream: rows * columns bytes, as FP8.
Reference empty_fp8(int64_t rows, int64_t columns, int ordinal, PyObject* stream);

// Uninitialised logits [rows, columns] on the device of `like`, FP32, whose rows start at multiples of 64 elements.
// They belong to `stream` (as a caller gives it; null: the current one).
TakenMemory make_logits(const Operand& like, int64_t rows, int64_t columns, Dtype dtype, PyObject* stream);

// Write -inf into all of D, on `stream`.
void fill_with_infinity(const Operand& d, void* stream);

// `ks` as an int32 tensor on the CPU, and on a GPU. The latter throws the Python ArgumentError while the stream is
// captured.
Reference make_cpu_tensor(const std::vector<int64_t>& ks);
Reference make_ks_tensor(const std::vector<int64_t>& ks, int ordinal, PyObject* stream);

// Add `threshold` to the signal of every `block_rows` rows among the `rows` of each group that begin within the rows in
// use, which `groups` says.
void add_signals(const Operand& signal, const Operand& groups, int64_t rows, int64_t block_rows, int64_t threshold,
                 PyObject* stream);

// D = C, of the same shape.
void copy_matrices(const Operand& d, const Operand& c, PyObject* stream);

}  // namespace deep_gemm
