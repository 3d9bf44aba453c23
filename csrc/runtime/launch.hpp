// Geometry and launch of the GEMM kernels.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.hpp"
#include "runtime/kernel.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

// Arguments of a kernel besides its tensor maps; the twin of Params in deep_gemm/include/deep_gemm/types.cuh. Both
// sides change together with LAUNCH_ABI. Addresses are 0 and strides meaningless for operands that the call does not
// have.
struct GemmParams {
    uint64_t scale_a = 0;  // address of FP32 [m, ceil(k / 128)], or [m]
    uint64_t scale_b = 0;  // address of FP32 [ceil(n / 128), ceil(k / 128)], [n, ceil(k / 128)] or [n]
    uint64_t d = 0;        // address of [m, n], or [m, n and the middle parts of heads]
    uint64_t c = 0;        // address of [m, n] of D's dtype

    int64_t scale_a_stride_mn = 0, scale_a_stride_k = 0;  // elements
    int64_t scale_b_stride_mn = 0, scale_b_stride_k = 0;
    int64_t d_stride_m = 0, c_stride_m = 0;
    uint32_t m = 0, n = 0, k = 0;
    uint32_t num_m_tiles = 0, num_n_tiles = 0;
    uint32_t band = 1;  // cluster tiles along m that are walked together
    float alpha = 1.0f, beta = 1.0f;
    uint32_t head_left = 0, head_mid = 0, head_right = 0;
    uint32_t zero = 0;  // must be 0: the kernels mask with it (pipeline.cuh)
};

static_assert(sizeof(GemmParams) == 128, "the kernel reads 128 bytes");

// The kernel counts tiles in 32 bits and steps past the last by one grid.
inline constexpr int64_t kMaxTiles = int64_t(1) << 31;

struct LaunchGeometry {
    uint32_t num_ctas = 0;
    uint32_t num_m_tiles = 0, num_n_tiles = 0;
    uint32_t band = 1;
};

// Cluster tiles along m that are walked together: a wave of `clusters` then covers a block of tiles `band` high, and
// the best band touches the fewest bytes of A and B (whose elements have the same size).
int64_t choose_band(const Config& config, int64_t m_cluster_tiles, int64_t clusters);

// Grid, tile counts and band of a product on `num_sms` SMs (0 = all). `max_clusters` limits the grid where it is not 0.
// With split_k every tile has a cluster of its own, whatever the SMs. Throws Error(kShape): more tiles than the kernel
// can count.
LaunchGeometry get_geometry(const Config& config, const GemmSizes& sizes, int num_sms, int sm_count, int max_clusters);

GemmParams make_params(const LaunchGeometry& geometry, const GemmOperands& operands, const GemmSizes& sizes,
                       const GemmOptions& options);

// Enqueue `kernel` on `stream` with the GIL released, in the current context; `sizes` are for the message. Throws
// Error(kLaunch).
void launch_kernel(const LoadedKernel& kernel, unsigned num_ctas, const GemmSizes& sizes, void** arguments,
                   void* stream);

// Launch the product on `stream`; operands were checked and are what the kernel was made for, m, n, k >= 1. Releases
// the GIL while the driver enqueues. Throws Error(kLaunch), Error(kLayout).
void launch_gemm(const LoadedKernel& kernel, const LaunchGeometry& geometry, const GemmOperands& operands,
                 const GemmSizes& sizes, const GemmOptions& options, void* stream);

// Write zeros into D [m, n], or [num_groups, m, n], on `stream`: the product over k = 0.
void launch_zero_fill(const Gpu& gpu, const TensorView& d, void* stream);

// Enqueue `function` with the GIL released and the context of `gpu` current; `what` is for the message. Throws
// Error(kLaunch).
void enqueue(const Gpu& gpu, driver::Function function, const driver::LaunchConfig& config, void** arguments,
             const std::string& what);

}  // namespace deep_gemm
