#include "runtime/grouped_launch.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/tensor_map.hpp"

namespace deep_gemm {
namespace {

int64_t group_stride(const TensorView& view) { return view.rank == 3 ? view.strides[0] : 0; }

// Tiles of clusters; contiguous groups share those of all rows, others have their own.
struct ClusterTiles {
    int64_t m, n, groups;

    int64_t of_matrix() const { return m * n; }
    int64_t count() const { return m * n * groups; }
};

ClusterTiles count_cluster_tiles(const Problem& problem, const Config& config) {
    const bool has_own_tiles = grouping_of(problem.op) != Grouping::kMContiguous;
    const ClusterTiles tiles{ceil_div(problem.m, int64_t(config.cluster_m) * config.block_m),
                             ceil_div(problem.n, int64_t(config.cluster_n) * config.block_n),
                             has_own_tiles ? problem.num_groups : 1};
    if (tiles.of_matrix() >= kMaxTiles / tiles.groups)
        throw Error(ErrorKind::kShape, "m = " + std::to_string(problem.m) + ", n = " + std::to_string(problem.n) +
                                           ", num_groups = " + std::to_string(problem.num_groups) +
                                           ": more than 2^31 tiles of " + to_string(config) +
                                           "; split the product along n.");
    return tiles;
}

GroupParams make_group_params(const GroupedCall& call, const GroupedSizes& sizes, uint64_t map_slots) {
    const GemmOperands& operands = call.operands;
    GroupParams params{.groups = call.groups.view.address,
                       .map_slots = map_slots,
                       .scale_a_stride_group = group_stride(operands.scale_a.view),
                       .scale_b_stride_group = group_stride(operands.scale_b.view),
                       .d_stride_group = group_stride(operands.d.view),
                       .c_stride_group = group_stride(operands.c.view),
                       .num_groups = uint32_t(sizes.num_groups)};
    if (call.has_blocks()) params.a = operands.a.view.address, params.b = operands.b.view.address;
    return params;
}

}  // namespace

LaunchGeometry get_grouped_geometry(const Problem& problem, const Config& config, int num_sms, int sm_count,
                                    int max_clusters) {
    const ClusterTiles tiles = count_cluster_tiles(problem, config);
    const int64_t cluster_size = int64_t(config.cluster_m) * config.cluster_n;
    const int64_t sms = num_sms > 0 ? std::min(num_sms, sm_count) : sm_count;
    const int64_t blocks = num_sms > 0 ? 1 : blocks_per_sm(problem, config);
    int64_t clusters = std::max<int64_t>(sms * blocks / cluster_size, 1);
    if (max_clusters > 0) clusters = std::min(clusters, max_clusters * blocks);
    clusters = std::min(clusters, tiles.count());
    const int64_t group_tiles = ceil_div(rows_per_group(problem), int64_t(config.cluster_m) * config.block_m);
    const int64_t band = choose_band(config, group_tiles, std::min(clusters, group_tiles * tiles.n));
    return {.num_ctas = uint32_t(clusters * cluster_size),
            .num_m_tiles = uint32_t(ceil_div(problem.m, config.block_m)),
            .num_n_tiles = uint32_t(ceil_div(problem.n, config.block_n)),
            .band = uint32_t(band)};
}

int64_t map_slots_bytes(const Config& config, const LaunchGeometry& geometry) {
    return int64_t(geometry.num_ctas) * 2 * (config.num_stages + 1) * int64_t(sizeof(driver::TensorMap));
}

void launch_grouped(const LoadedKernel& kernel, const LaunchGeometry& geometry, const GroupedCall& call,
                    const GroupedSizes& sizes, uint64_t map_slots, void* stream) {
    const ContextGuard context(*kernel.gpu);  // the driver encodes no map without one
    GemmMaps maps = make_grouped_maps(driver::api(), kernel.problem, kernel.config, call, sizes);
    GemmParams params = make_params(geometry, call.operands, sizes.gemm, call.options);
    GroupParams groups = make_group_params(call, sizes, map_slots);
    void* arguments[] = {&maps.a, &maps.b, &maps.d, &maps.scale_a, &maps.scale_b, &params, &groups};
    launch_kernel(kernel, geometry.num_ctas, sizes.gemm, arguments, stream);
}

}  // namespace deep_gemm
