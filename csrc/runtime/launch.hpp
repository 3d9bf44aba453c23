// Geometry and launch of the kernels.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.hpp"
#include "core/legality.hpp"
#include "runtime/call.hpp"
#include "runtime/kernel.hpp"
#include "runtime/tensor_map.hpp"

namespace deep_gemm {

// Arguments of a kernel besides its tensor maps; the twin of Params in deep_gemm/include/deep_gemm/types.cuh. Both
// sides change together with LAUNCH_ABI. For operands that the call does not have, addresses are 0 and strides
// mean nothing.
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

// Argument of a grouped kernel after Params; the twin of GroupParams (sm90/scheduler/group_params.cuh).
// Both sides change together with LAUNCH_ABI. Strides are in elements, and 0 where a tensor has no dim of groups.
struct GroupParams {
    uint64_t groups = 0;     // address of m_indices [m], masked_m, ks or ends [num_groups]
    uint64_t a = 0, b = 0;   // maps for each group only: addresses of the operands
    uint64_t map_slots = 0;  // maps for each group only: address of map_slots_bytes of memory
    int64_t scale_a_stride_group = 0, scale_b_stride_group = 0, d_stride_group = 0, c_stride_group = 0;
    uint32_t num_groups = 0;
    // Groups with ends only, else 0 (group_ends.cuh): the alignment of the groups' rows, whether rows of padding become
    // +0, and the pitches of the rows of K of MN-major operands in units of 16 bytes.
    uint32_t alignment = 0, has_zero_padding = 0, pitch_a = 0, pitch_b = 0;
    uint32_t num_parts = 0;  // sums over groups only (summed_scheduler.cuh)
    uint64_t signals = 0;    // calls with signals only: their address (sm90/epilogue/signals.cuh)
};

static_assert(sizeof(GroupParams) == 96, "the kernel reads 96 bytes");

// What a kernel has of its second tile besides GroupParams; the twin of SecondTile (sm90/scheduler/tile_choice.cuh).
// Both sides change together. LAUNCH_ABI is not raised by it: sweeps measure no such kernel.
struct SecondTile {
    TensorMaps maps;
    GemmParams params;
    float weight = 0.0f;  // of its rounds, see second_tile_weight
};

static_assert(sizeof(SecondTile) == 960, "the kernel reads 960 bytes");

// How a second tile divides the product; the grid has room for either.
struct SecondGeometry {
    uint32_t num_m_tiles = 0, num_n_tiles = 0;
    uint32_t band = 1;
    float weight = 0.0f;
};

struct LaunchGeometry {
    uint32_t num_ctas = 0;
    uint32_t num_m_tiles = 0, num_n_tiles = 0;
    uint32_t band = 1;
    uint32_t num_parts = 1;  // of a sum over groups: each has a D of its own
    // Of a sum over groups: whether another kernel takes it whole (sum_products.hpp). Never for a given kernel.
    bool is_small_sum = false;
    SecondGeometry second{};  // of a kernel with two tiles
};

// Grid, tile counts and band of `problem` with `config` on `num_sms` SMs (0 = all) of a GPU, of which the SMs and the
// rate of the memory count. `max_clusters` limits the grid where it is not 0. With split_k every tile has a cluster of
// its own, whatever the SMs. Several CTAs share an SM by core/grid.hpp, which also says what `register_blocks` is for,
// unless `num_sms` limits the grid. Throws Error(kShape): more tiles than the kernel can count.
LaunchGeometry get_geometry(const Problem& problem, const Config& config, int num_sms, const Device& device,
                            int max_clusters, int register_blocks = kMaxBlocksPerSm);

// The same of a loaded kernel on its GPU, with its second tile.
LaunchGeometry get_kernel_geometry(const Problem& problem, const LoadedKernel& kernel, int num_sms);

// Memory in which the CTAs of a launch keep the tensor maps of the groups that they work on.
int64_t map_slots_bytes(const Config& config, const LaunchGeometry& geometry);

// Launch `kernel` on `stream`; the operands were checked and are what the kernel was made for, m, n, k >= 1.
// `map_slots`: address of memory for maps of groups, aligned to 128 bytes, else 0. Releases the GIL while the driver
// enqueues. Throws Error(kLaunch), Error(kLayout).
void launch(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, const Sizes& sizes,
            uint64_t map_slots, void* stream);

// Write zeros into D [m, n], or [num_groups, m, n], on `stream`: the product over k = 0.
void launch_zero_fill(const Gpu& gpu, const TensorView& d, void* stream);

// Enqueue `function` in the current context, with the GIL released.
driver::Result enqueue_released(driver::Function function, const driver::LaunchConfig& config, void** arguments);

// Throw Error(kLaunch): the driver's `call` for `what` gave `result`.
[[noreturn]] void fail_launch(driver::Result result, const char* call, const std::string& what);

// The two together; `what()` makes the text of a failure, which is not made before.
template <class What>
void enqueue(driver::Function function, const driver::LaunchConfig& config, void** arguments, const What& what) {
    const driver::Result result = enqueue_released(function, config, arguments);
    if (result != driver::kSuccess) [[unlikely]]
        fail_launch(result, "cuLaunchKernelEx", what());
}

}  // namespace deep_gemm
