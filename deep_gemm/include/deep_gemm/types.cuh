// Types shared by every kernel. Nothing here needs a header that NVRTC does not bring itself.
#pragma once

namespace deep_gemm {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Stands for CUtensorMap: 128 opaque bytes that the host encodes. TMA wants them 64-byte aligned (PTX ISA, "Tensor-map").
struct alignas(64) TensorMap {
    u8 bytes[128];
};

// Arguments of the FP8 kernels besides the tensor maps. The host's twin is in csrc/runtime/launch.hpp; both sides change
// together with LAUNCH_ABI.
struct Params {
    const float* scale_a;      // [m, ceil(k/128)], any strides
    const float* scale_b;      // [ceil(n/128), ceil(k/128)], any strides
    u16* d;                    // [m, n] BF16; only for the columns beyond the last whole 16 bytes, which TMA cannot store
    i64 scale_a_stride_m;      // elements
    i64 scale_a_stride_k;
    i64 scale_b_stride_n;
    i64 scale_b_stride_k;
    i64 d_stride_m;
    u32 m, n, k;
    u32 num_m_tiles;           // ceil(m / block_m)
    u32 num_n_tiles;           // ceil(n / block_n)
    u32 band;                  // cluster tiles along m that are walked together, for L2 reuse
    float alpha;
    u32 reserved;
};

static_assert(sizeof(TensorMap) == 128, "the driver encodes 128 bytes");
static_assert(sizeof(Params) == 96, "the host passes 96 bytes");

__device__ __forceinline__ constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
__device__ __forceinline__ constexpr u32 align_up(u32 a, u32 b) { return ceil_div(a, b) * b; }
__device__ __forceinline__ constexpr u32 gcd(u32 a, u32 b) { return b == 0 ? a : gcd(b, a % b); }

}  // namespace deep_gemm
