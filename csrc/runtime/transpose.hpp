// The pass that gives an FP8 operand K-major rows: Hopper's FP8 WGMMA takes no other (PTX ISA, wgmma.mma_async, "Strides").
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/gpu.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// A K-major copy of an operand and the memory that it lies in, which must live until what reads it is enqueued on the same stream.
struct KMajorCopy {
    pybind11::object memory;
    Operand operand;
};

// Copy `operand` [rows, k], whose memory is MN-major, on at most `num_sms` SMs (0 = all) and on `stream`; `is_current_stream`: torch's own
// on the operand's device. The memory comes from torch's allocator on that stream, rows at a pitch of k rounded up to 16 bytes. One
// launch, at most 2 * rows * k bytes of traffic. Works during stream capture. Throws Error(kLaunch), or the Python error of compiling or
// allocating.
KMajorCopy make_k_major(const Gpu& gpu, const Operand& operand, int num_sms, void* stream, bool is_current_stream);

}  // namespace deep_gemm
