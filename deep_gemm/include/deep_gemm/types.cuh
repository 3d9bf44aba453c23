// Types shared by every kernel. Nothing here needs a header that NVRTC does not bring itself.
#pragma once

namespace deep_gemm {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Stands for CUtensorMap: 128 opaque bytes that the host encodes. TMA wants them 64-byte aligned (PTX ISA,
// "Tensor-map").
struct alignas(64) TensorMap {
    u8 bytes[128];
};

// Arguments of the GEMM kernels besides the tensor maps. The host's twin is in csrc/runtime/launch.hpp; both sides
// change together with LAUNCH_ABI. Strides are in elements.
struct Params {
    const float* scale_a;  // [m, ceil(k/128)], or [m] for scales per row; null for BF16
    const float* scale_b;  // [ceil(n/128), ceil(k/128)], [n, ceil(k/128)] or [n]
    void* d;               // [m, n]
    const void* c;         // [m, n] of the type of D, or null
    i64 scale_a_stride_mn, scale_a_stride_k;
    i64 scale_b_stride_mn, scale_b_stride_k;
    i64 d_stride_m, c_stride_m;
    u32 m, n, k;
    u32 num_m_tiles;  // ceil(m / block_m)
    u32 num_n_tiles;  // ceil(n / block_n)
    u32 band;         // cluster tiles along m that are walked together, for L2 reuse
    float alpha, beta;
    // A head of `left` + `right` columns is stored around `mid` columns that are left alone.
    u32 head_left, head_mid, head_right;
    u32 zero;  // 0, which the compiler does not know: see Pipeline::release
};

static_assert(sizeof(TensorMap) == 128, "the driver encodes 128 bytes");
static_assert(sizeof(Params) == 128, "the host passes 128 bytes");

__device__ __forceinline__ constexpr u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
__device__ __forceinline__ constexpr u32 align_up(u32 a, u32 b) { return ceil_div(a, b) * b; }
__device__ __forceinline__ constexpr u32 max_of(u32 a, u32 b) { return a > b ? a : b; }
__device__ __forceinline__ constexpr u32 gcd(u32 a, u32 b) { return b == 0 ? a : gcd(b, a % b); }

// What happens to C: nothing, TMA adds the result onto it (C is D), any C with alpha and beta, or no C and columns
// remapped by heads.
enum class CMode : u32 { kNone, kAccumulate, kGeneral, kHeadSplit };

// Granularity of the scales: A per 1x128 and B per 128x128, both per 1x128, one per row of either, none (BF16).
enum class Recipe : u32 { k1D2D, k1D1D, kPerRow, kNone };

}  // namespace deep_gemm
