// The pass that makes an FP8 operand K-major: Hopper's FP8 WGMMA takes no other (PTX ISA, wgmma.mma_async, "Strides").
#pragma once

#include "core/python.hpp"
#include "runtime/gpu.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// A K-major copy of an operand and the memory that it lies in, which must live until what reads it is enqueued on the
// same stream.
struct KMajorCopy {
    Reference memory;
    Operand operand;
};

// Compile and load the pass, so that make_k_major finds it. Throws as make_k_major.
void load_transpose_kernel(const Gpu& gpu);

// Copy `operand` [rows, k] or [num_groups, rows, k], whose memory is MN-major, on at most `num_sms` SMs (0 = all) and
// on `stream`, whose handle for torch is `handle`. The memory comes from torch's allocator on that stream; the pitch of
// its rows is a multiple of 16 bytes. Every element costs at most two bytes of traffic. One launch, or one for each
// group where the groups are not evenly spaced or k is not a multiple of 16. Works during stream capture. Throws
// Error(kLaunch), and PythonError where compiling or allocating failed.
KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, PyObject* handle);

}  // namespace deep_gemm
