// The pass that gives an FP8 operand K-major rows: Hopper's FP8 WGMMA takes no other (PTX ISA, wgmma.mma_async,
// "Strides").
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/gpu.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// A K-major copy of an operand and the memory that it lies in, which must live until what reads it is enqueued on the
// same stream.
struct KMajorCopy {
    pybind11::object memory;
    Operand operand;
};

// Copy `operand` [rows, k] or [num_groups, rows, k], whose memory is MN-major, on at most `num_sms` SMs (0 = all) and
// on `stream`, whose handle for torch is `handle`. The memory comes from torch's allocator on that stream, rows at a
// pitch that is a multiple of 16 bytes. At most two bytes of traffic for each element, in one launch, or in one for
// each group where these are not evenly spaced or k is no multiple of 16. Works during stream capture. Throws
// Error(kLaunch), or the Python error of compiling or allocating.
KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream,
                        const pybind11::object& handle);

}  // namespace deep_gemm
