// What the docstrings of several kinds of ops have in common.
#pragma once

namespace deep_gemm {

inline constexpr const char* kCompiledDims =
    "    compiled_dims: subset of 'mnk' that become constants of the kernel; None lets the library decide.\n";

inline constexpr const char* kDisable =
    "    disable_ue8m0_cast: accepted for compatibility; scales stay FP32 on SM90.\n";

inline constexpr const char* kTransposing = R"(
The kernels read FP8 along K. An operand that is contiguous along the other dimension is first copied by a transposing kernel, into
memory of torch's allocator on the same stream: one more launch, on no more SMs than set_num_sms allows, and every byte of the operand
read and written once more.
)";

inline constexpr const char* kRaises = R"(
Raises:
    ArgumentError: not a tensor, a missing or unsupported argument, an input that requires grad while grad mode is on.
    DtypeError, ShapeError, LayoutError: an operand of the wrong dtype, rank or size, strides, alignment or overlap.
    DeviceError: operands on several devices, no driver, or a GPU other than SM90.
    CompileError, LaunchError: the kernel could not be compiled, loaded or launched.)";

}  // namespace deep_gemm
