// Geometry and launch of the grouped kernels.
#pragma once

#include <cstdint>

#include "core/config.hpp"
#include "runtime/grouped_call.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launch.hpp"

namespace deep_gemm {

// Argument of a grouped kernel after Params; the twin of GroupParams in deep_gemm/include/deep_gemm/grouped_types.cuh.
// Both sides change together with LAUNCH_ABI. Strides are in elements, and 0 where a tensor has no dim of groups.
struct GroupParams {
    uint64_t groups = 0;     // address of m_indices [m], masked_m [num_groups] or ks [num_groups]
    uint64_t a = 0, b = 0;   // blocks only: addresses of the operands
    uint64_t map_slots = 0;  // blocks only: map_slots_bytes of memory
    int64_t scale_a_stride_group = 0, scale_b_stride_group = 0, d_stride_group = 0, c_stride_group = 0;
    uint32_t num_groups = 0;
    uint32_t reserved[7] = {};
};

static_assert(sizeof(GroupParams) == 96, "the kernel reads 96 bytes");

// As get_geometry, for a grouped `problem` of the kernel's variant. Blocks that share an SM all enter the grid, unless
// `num_sms` limits it. Throws Error(kShape).
LaunchGeometry get_grouped_geometry(const Problem& problem, const Config& config, int num_sms, int sm_count,
                                    int max_clusters);

// Memory in which the CTAs of a launch on blocks keep tensor maps of the groups that they work on.
int64_t map_slots_bytes(const Config& config, const LaunchGeometry& geometry);

// Launch the product on `stream`, as launch_gemm; `map_slots`: address of memory for blocks, aligned to 128 bytes, else
// 0.
void launch_grouped(const LoadedKernel& kernel, const LaunchGeometry& geometry, const GroupedCall& call,
                    const GroupedSizes& sizes, uint64_t map_slots, void* stream);

}  // namespace deep_gemm
