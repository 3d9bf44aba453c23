// The pass that copies row-major scales to the layout that TMA reads, for products so large that reading them where
// they are costs more than the pass: on an H100 2 to 167 us, where the pass costs at most 7 (docs/experiments.md).
#pragma once

#include <array>

#include "core/python.hpp"
#include "runtime/call.hpp"
#include "runtime/gpu.hpp"

namespace deep_gemm {

// The memory of the copies, which must live until what reads them is enqueued on the same stream.
using ScaleMemory = std::array<Reference, 2>;

// The layouts of the product that is run for a call: `layouts`, with MN-major scales where they are copied first. No
// scales are copied while the SMs are limited, because the pass takes them all, and none where the pass does not
// compile, of which the process warns once. Throws PythonError for other failures to load it.
Layouts with_scale_copies(const Gpu& gpu, const Call& call, const Sizes& sizes, const Layouts& layouts);

// The problem that is run for operands of `problem` whose scales are row-major: with MN-major ones if they are copied.
Problem with_scale_copies(const Problem& problem);

// Whether scales of a call must be copied for a product of these layouts.
bool needs_scale_copies(const Call& call, const Layouts& layouts);

// Compile and load the pass for any call. Throws as copy_scales.
void load_scale_copy_kernels(const Gpu& gpu);

// Let the call's row-major scales be MN-major copies, made on `stream`, whose handle for torch is `handle`. The memory
// comes from torch's allocator on that stream. Works during stream capture. Throws Error(kLaunch), and PythonError
// where compiling or allocating failed.
ScaleMemory copy_scales(const Gpu& gpu, Call& call, void* stream, PyObject* handle);

}  // namespace deep_gemm
