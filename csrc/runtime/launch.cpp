#include "runtime/launch.hpp"

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "core/grid.hpp"
#include "core/heuristic.hpp"
#include "core/second_tile.hpp"
#include "runtime/band.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"

namespace deep_gemm {
namespace {

// The kernel counts tiles in 32 bits and steps past the last by one grid.
constexpr int64_t kMaxTiles = int64_t(1) << 31;

// The driver may block when its queue is full, and what drains the queue may need the GIL (a host callback). While the
// interpreter ends, Python before 3.14 unwinds a thread that asks for the GIL; nothing may be unwound here, neither a
// destructor nor frames that hold references, so that the thread waits for the end of the process.
class ReleasedGil {
 public:
    ReleasedGil() : state_(PyEval_SaveThread()) {}
    ~ReleasedGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (const abi::__forced_unwind&) {
            for (;;) pause();
        }
    }
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
    PyThreadState* state_;
};

// For a kernel of two tiles that is said to have one: no comparison with its weight holds, so that the first is taken.
SecondTile never_taken{.maps = {}, .params = {}, .weight = std::numeric_limits<float>::quiet_NaN()};

struct Extent {
    int64_t rows, columns;
};

// Strides of the matrix, behind the dim of groups where there is one; 0 for absent operands.
int64_t group_stride(const TensorView& view) { return view.rank == 3 ? view.strides[0] : 0; }
int64_t row_stride(const TensorView& view) { return view.rank == 3 ? view.strides[1] : view.strides[0]; }
int64_t column_stride(const TensorView& view) { return view.rank == 3 ? view.strides[2] : view.strides[1]; }

void set_scales(GemmParams& params, const TensorView& a, const TensorView& b) {
    params.scale_a = a.address, params.scale_b = b.address;
    params.scale_a_stride_mn = row_stride(a), params.scale_a_stride_k = column_stride(a);
    params.scale_b_stride_mn = row_stride(b), params.scale_b_stride_k = column_stride(b);
}

std::string product_text(const Sizes& sizes) {
    return "m = " + std::to_string(sizes.m) + ", n = " + std::to_string(sizes.n) + ", k = " + std::to_string(sizes.k);
}

// Tiles of clusters. Contiguous groups share those of all rows, a sum those of its D, others have their own; a dense
// product is one group.
struct ClusterTiles {
    int64_t m, n, groups;

    int64_t count() const { return m * n * groups; }
};

[[noreturn]] void fail_tiles(const Problem& problem, const Config& config) {
    const std::string groups =
        is_grouped(problem.op) ? ", num_groups = " + std::to_string(problem.num_groups) : std::string();
    throw Error(ErrorKind::kShape, "m = " + std::to_string(problem.m) + ", n = " + std::to_string(problem.n) + groups +
                                       ": more than 2^31 tiles of " + to_string(config) +
                                       "; split the product along n.");
}

ClusterTiles count_cluster_tiles(const Problem& problem, const Config& config) {
    const OpKind& kind = op_kind(problem.op);
    const bool has_own_tiles = kind.is_grouped() && !kind.m_is_shared() && !kind.is_summed();
    const ClusterTiles tiles{ceil_div(problem.m, int64_t(config.cluster_m) * config.block_m),
                             ceil_div(problem.n, int64_t(config.cluster_n) * config.block_n),
                             has_own_tiles ? problem.num_groups : 1};
    if (tiles.m * tiles.n >= kMaxTiles / (tiles.groups * config.split_k)) fail_tiles(problem, config);
    return tiles;
}

// Parts of a sum over groups: as many as there are clusters for each tile, unless m and n must not count.
int64_t count_parts(const Problem& problem, int64_t clusters, const ClusterTiles& tiles) {
    if (!op_kind(problem.op).is_summed()) return 1;
    if (problem.batch_invariant) return count_invariant_parts(problem);
    return std::clamp<int64_t>(clusters / tiles.count(), 1, count_sum_steps(problem));
}

// Clusters of the grid, which is persistent.
int64_t count_clusters(const Problem& problem, const Config& config, const ClusterTiles& tiles, int num_sms,
                       int sm_count, int max_clusters, int register_blocks) {
    const int64_t sms = num_sms > 0 ? std::min(num_sms, sm_count) : sm_count;
    const int64_t ctas =  // on an SM
        num_sms > 0 ? 1 : grid_blocks_per_sm(problem, config, tiles.m, tiles.count(), sm_count, register_blocks);
    int64_t clusters = std::max<int64_t>(sms * ctas / (int64_t(config.cluster_m) * config.cluster_n), 1);
    if (max_clusters > 0) clusters = std::min(clusters, max_clusters * ctas);
    return std::min(clusters, count_parts(problem, clusters, tiles) * tiles.count());
}

// The GIL is held: a memset is rare here and never in a loop of the caller.
void fill_rows(uint64_t address, Extent extent, int64_t pitch, Dtype dtype, void* stream) {
    const size_t width = size_t(extent.columns * element_bytes(dtype));
    const size_t row_pitch = extent.rows > 1 ? size_t(pitch) : width;
    const driver::Result result = driver::api().memset_d2d8_async(address, row_pitch, 0, width, size_t(extent.rows),
                                                                  static_cast<driver::Stream>(stream));
    if (result != driver::kSuccess) fail_launch(result, "cuMemsetD2D8Async", "the zero fill of d");
}

GemmParams make_params(const LaunchGeometry& geometry, const Call& call, const Sizes& sizes) {
    GemmParams params{.d = call.d.view.address,
                      .c = call.c.view.address,
                      .d_stride_m = row_stride(call.d.view),
                      .c_stride_m = row_stride(call.c.view),
                      .m = uint32_t(sizes.m),
                      .n = uint32_t(sizes.n),
                      .k = uint32_t(sizes.k),
                      .num_m_tiles = geometry.num_m_tiles,
                      .num_n_tiles = geometry.num_n_tiles,
                      .band = geometry.band,
                      .alpha = call.alpha,
                      .beta = call.beta,
                      .head_left = uint32_t(call.heads.left),
                      .head_mid = uint32_t(call.heads.mid),
                      .head_right = uint32_t(call.heads.right)};
    set_scales(params, call.scale_a.view, call.scale_b.view);
    return params;
}

// The pitch of the rows of K of an MN-major operand, in units with which 32 bits hold any pitch that memory has room
// for.
uint32_t k_pitch(const Operand& operand) {
    return uint32_t(row_pitch_bytes(transposed(operand).view) / kPitchAlignment);
}

void set_ends(GroupParams& params, const Call& call) {
    const OpKind& kind = op_kind(call.op);
    if (kind.m_is_shared())
        params.alignment = uint32_t(call.alignment), params.has_zero_padding = call.ensures_zero_padding;
    if (kind.k_is_divided() && !kind.is_fp8) params.pitch_a = k_pitch(call.a), params.pitch_b = k_pitch(call.b);
}

GroupParams make_group_params(const Call& call, const Sizes& sizes, const LaunchGeometry& geometry,
                              uint64_t map_slots) {
    GroupParams params{.groups = call.groups.view.address,
                       .map_slots = map_slots,
                       .scale_a_stride_group = group_stride(call.scale_a.view),
                       .scale_b_stride_group = group_stride(call.scale_b.view),
                       .d_stride_group = group_stride(call.d.view),
                       .c_stride_group = group_stride(call.c.view),
                       .num_groups = uint32_t(sizes.num_groups)};
    if (call.needs_group_maps()) params.a = call.a.view.address, params.b = call.b.view.address;
    if (op_kind(call.op).has_ends()) set_ends(params, call);
    if (op_kind(call.op).is_summed()) params.num_parts = geometry.num_parts;
    params.signals = call.signal.view.address;
    return params;
}

// Whether a kernel may start while the one before it ends. Not in BF16 where an SM takes one CTA and two such kernels
// do not fit side by side: graphs of them in a row were up to 11 % slower with 128 and 132 CTAs and 28 % with 74 of
// 64x56. (103 and 112 of other tiles were up to 7 % faster, which is given up; up to 66 CTAs 7 to 10 %.) Nor for FP8
// with split K that fills the SMs just once with room for at most two CTAs on each (33 clusters of four 6 % slower).
// Other FP8 kernels were 1 to 13 % faster in graphs, clusters 16 % where three CTAs fit, and of all others none lost
// (H200, three runs, 124 cases). Since then 112 clusters of two, three CTAs to an SM, were timed: 16x64 in two parts at
// (16, 7168, 2048) takes 1.12 of its time. Why is not known.
bool may_overlap(const LoadedKernel& kernel, const LaunchGeometry& geometry) {
    if (!get_pdl()) return false;
    const uint32_t sms = uint32_t(kernel.gpu->device.sm_count);
    if (geometry.num_ctas > sms) return true;
    if (!is_fp8(kernel.problem.op)) return kernel.blocks_per_sm > 1 || 2 * geometry.num_ctas <= sms;
    return 8 * geometry.num_ctas < 7 * sms || kernel.config.split_k == 1 || kernel.blocks_per_sm > 2;
}

WalkedTiles describe_walk(const Problem& problem, const Config& config, const ClusterTiles& tiles, int64_t clusters,
                          const Device& device) {
    const OpKind& kind = op_kind(problem.op);
    const bool is_shared = kind.m_is_shared();
    // Contiguous groups share one walk over all rows. Those with ends are walked one by one, unless tiles are pairs
    // along m, but by the same bands, with which nine choices take 0.99 of the time in the walk over all rows (H200).
    // Masked groups may have more rows than expected, and a band that cuts a group reads its B once more: 625 us
    // instead of 533 for 32 groups of about 192 rows, n 6144, k 7168 (H200).
    const int64_t rows = kind.has_room() || is_shared ? problem.m : rows_per_group(problem),
                  tile_rows = int64_t(config.cluster_m) * config.block_m, m_tiles = ceil_div(rows, tile_rows),
                  group_tiles = ceil_div(rows_per_group(problem), tile_rows),
                  unit = std::max<int64_t>(1, problem.alignment / tile_rows);
    return {.m = m_tiles,
            .n = tiles.n,
            .clusters = std::min(clusters, m_tiles * tiles.n),
            .all = tiles.count(),
            .group_tiles = is_shared ? ceil_div(group_tiles, unit) * unit : 0,
            .group_unit = unit,
            .is_dense = !is_grouped(problem.op),
            .may_have_less = kind.has_room(),
            .k_bytes = extent_of(problem).k * element_bytes(problem.op),
            .d_bytes = d_element_bytes(problem) * (problem.c_mode == CMode::kNone ? 1 : 2),
            .memory_gbps = device.memory_gbps};
}

// Both schedules are right for any grid.
LaunchGeometry get_logits_geometry(const Problem& problem, const Config& config, int num_sms, int sm_count) {
    const int64_t sms = num_sms > 0 ? std::min(num_sms, sm_count) : sm_count;
    const int64_t m_tiles = ceil_div(problem.m, config.block_m), n_tiles = ceil_div(problem.n, kKeysPerStage);
    return {.num_ctas = uint32_t(m_tiles < sms ? std::min(sms, m_tiles * n_tiles) : sms),
            .num_m_tiles = uint32_t(m_tiles),
            .num_n_tiles = uint32_t(n_tiles)};
}

SecondTile make_second_tile(const LoadedKernel& kernel, const SecondGeometry& geometry, const Call& call,
                            const Sizes& sizes, GemmParams params) {
    params.num_m_tiles = geometry.num_m_tiles, params.num_n_tiles = geometry.num_n_tiles, params.band = geometry.band;
    return {.maps = make_tensor_maps(driver::api(), kernel.problem, *kernel.second, call, sizes),
            .params = params,
            .weight = geometry.weight};
}

}  // namespace

LaunchGeometry get_geometry(const Problem& problem, const Config& config, int num_sms, const Device& device,
                            int max_clusters, int register_blocks) {
    const int sm_count = device.sm_count;
    if (is_logits(problem)) return get_logits_geometry(problem, config, num_sms, sm_count);
    const ClusterTiles tiles = count_cluster_tiles(problem, config);
    const int64_t m_tiles = ceil_div(problem.m, config.block_m), n_tiles = ceil_div(problem.n, config.block_n);
    const bool is_split =
        config.split_k > 1;  // one cluster of split_k CTAs for each tile: such a grid is not persistent
    const int64_t clusters =
        is_split ? std::clamp<int64_t>(sm_count / config.split_k, 1, tiles.count())
                 : count_clusters(problem, config, tiles, num_sms, sm_count, max_clusters, register_blocks);
    const int64_t cluster_size = int64_t(config.cluster_m) * config.cluster_n;
    return {.num_ctas = uint32_t(is_split ? m_tiles * n_tiles * config.split_k : clusters * cluster_size),
            .num_m_tiles = uint32_t(m_tiles),
            .num_n_tiles = uint32_t(n_tiles),
            .band = uint32_t(choose_band(config, describe_walk(problem, config, tiles, clusters, device))),
            .num_parts = uint32_t(count_parts(problem, clusters, tiles))};
}

LaunchGeometry get_kernel_geometry(const Problem& problem, const LoadedKernel& kernel, int num_sms) {
    const Device& device = kernel.gpu->device;
    const auto divide = [&](const Config& config) {
        return get_geometry(problem, config, num_sms, device, kernel.max_clusters, kernel.register_blocks);
    };
    LaunchGeometry geometry = divide(kernel.config);
    if (!kernel.second) return geometry;
    const LaunchGeometry second = divide(*kernel.second);
    geometry.num_ctas = std::max(geometry.num_ctas, second.num_ctas);
    geometry.second = {.num_m_tiles = second.num_m_tiles,
                       .num_n_tiles = second.num_n_tiles,
                       .band = second.band,
                       .weight = float(second_tile_weight(problem, kernel.config, *kernel.second, device))};
    return geometry;
}

int64_t map_slots_bytes(const Config& config, const LaunchGeometry& geometry) {
    return int64_t(geometry.num_ctas) * 2 * (config.num_stages + 1) * int64_t(sizeof(driver::TensorMap));
}

void launch(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, const Sizes& sizes,
            uint64_t map_slots, void* stream) {
    const ContextGuard context(*kernel.gpu);  // the driver encodes no map without one
    TensorMaps maps = make_tensor_maps(driver::api(), kernel.problem, kernel.config, call, sizes);
    GemmParams params = make_params(geometry, call, sizes);
    GroupParams groups;
    if (is_grouped(call.op)) groups = make_group_params(call, sizes, geometry, map_slots);
    std::optional<SecondTile> second;  // most kernels have none, and it is large
    if (kernel.second) second = make_second_tile(kernel, geometry.second, call, sizes, params);
    // A dense kernel has no eighth parameter and most have no ninth; the driver reads as many as the kernel has. One of
    // two tiles of which `_C.Kernel` was told the first alone reads never_taken.
    void* arguments[] = {&maps.a,       &maps.b,       &maps.d,
                         &maps.scale_a, &maps.scale_b, &maps.a_tail,
                         &params,       &groups,       second ? &*second : &never_taken};
    const KernelLaunch launch(kernel, geometry.num_ctas, static_cast<driver::Stream>(stream),
                              may_overlap(kernel, geometry));
    enqueue(kernel.function(), launch.config, arguments,
            [&] { return product_text(sizes) + " with " + name_tiles(kernel.config, kernel.second); });
}

void fail_launch(driver::Result result, const char* call, const std::string& what) {
    const char* remedy =
        driver::is_sticky(result)
            ? "; an earlier kernel of this process failed and its CUDA context is lost: restart the process."
            : "; check the stream and the GPU's state, and report a config that never launches.";
    throw Error(ErrorKind::kLaunch,
                std::string(call) + " for " + what + ": " + driver::describe(driver::api(), result) + remedy);
}

driver::Result enqueue_released(driver::Function function, const driver::LaunchConfig& config, void** arguments) {
    const ReleasedGil released;
    return driver::api().launch_kernel_ex(&config, function, arguments, nullptr);
}

void launch_zero_fill(const Gpu& gpu, const TensorView& d, void* stream) {
    const ContextGuard context(gpu);
    if (d.rank == 2) return fill_rows(d.address, {d.shape[0], d.shape[1]}, row_pitch_bytes(d), d.dtype, stream);
    const int64_t rows = d.shape[1], group_pitch = group_pitch_bytes(d);
    if (rows == 1) return fill_rows(d.address, {d.shape[0], d.shape[2]}, group_pitch, d.dtype, stream);
    if (d.strides[0] == rows * d.strides[1])
        return fill_rows(d.address, {d.shape[0] * rows, d.shape[2]}, row_pitch_bytes(d), d.dtype, stream);
    for (int64_t group = 0; group < d.shape[0]; ++group)
        fill_rows(d.address + uint64_t(group * group_pitch), {rows, d.shape[2]}, row_pitch_bytes(d), d.dtype, stream);
}

}  // namespace deep_gemm
