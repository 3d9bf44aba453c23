// Geometry and launch of the FP8 GEMM kernel.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "runtime/checks.hpp"
#include "runtime/kernel.hpp"

namespace deep_gemm {

// Arguments of the kernel besides its tensor maps; the twin of Params in deep_gemm/include/deep_gemm/types.cuh. Both sides
// change together with LAUNCH_ABI.
struct Fp8GemmParams {
    uint64_t scale_a;  // address of FP32 [m, ceil(k / 128)]
    uint64_t scale_b;  // address of FP32 [ceil(n / 128), ceil(k / 128)]
    uint64_t d;        // address of BF16 [m, n]

    int64_t scale_a_stride_m, scale_a_stride_k;  // elements
    int64_t scale_b_stride_n, scale_b_stride_k;
    int64_t d_stride_m;
    uint32_t m, n, k;
    uint32_t num_m_tiles, num_n_tiles;
    uint32_t band;  // cluster tiles along m that are walked together
    float alpha;
    uint32_t reserved;
};

static_assert(sizeof(Fp8GemmParams) == 96, "the kernel reads 96 bytes");

struct LaunchGeometry {
    uint32_t num_ctas = 0;
    uint32_t num_m_tiles = 0, num_n_tiles = 0;
    uint32_t band = 1;
};

// Grid, tile counts and band of a product on `num_sms` SMs (0 = all). `max_clusters` limits the grid where it is not 0.
// Throws Error(kShape): more tiles than the kernel can count.
LaunchGeometry get_geometry(const Config& config, const GemmSizes& sizes, int num_sms, int sm_count, int max_clusters);

// Launch D = alpha * (A @ B.T) on `stream`; operands were checked and m, n, k >= 1. Releases the GIL while the driver enqueues.
// Throws Error(kLaunch), Error(kLayout).
void launch_fp8_gemm(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Fp8GemmOperands& operands, const GemmSizes& sizes,
                     float alpha, void* stream);

// Write zeros into D [m, n] on `stream`: the product over k = 0.
void launch_zero_fill(const Gpu& gpu, const TensorView& d, void* stream);

}  // namespace deep_gemm
