// The pass that makes FP8 operands K-major: Hopper's FP8 WGMMA takes no other (PTX ISA, wgmma.mma_async, "Strides").
#pragma once

#include <array>
#include <span>

#include "core/python.hpp"
#include "runtime/gpu.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// The memory of K-major copies, which must live until what reads them is enqueued on the same stream.
using KMajorMemory = std::array<Reference, 2>;

// Compile and load the pass, so that make_k_major finds it. Throws as make_k_major.
void load_transpose_kernel(const Gpu& gpu);

// Let one or two `operands` [rows, k] or [num_groups, rows, k], whose memory is MN-major, be K-major copies: one launch
// on at most `num_sms` SMs (0 = all) and on `stream`, whose handle for torch is `handle`. The memory comes from torch's
// allocator on that stream; groups lie one after the other, and the pitch of rows is k rounded up to 16 bytes. Every
// element costs two bytes of traffic. Works during stream capture. Throws Error(kLaunch), and PythonError where
// compiling or allocating failed.
KMajorMemory make_k_major(const Gpu& gpu, std::span<Operand* const> operands, int num_sms, void* stream,
                          PyObject* handle);

}  // namespace deep_gemm
