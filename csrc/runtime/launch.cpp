#include "runtime/launch.hpp"

#include <Python.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"
#include "runtime/tensor_map.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kMaxBand = 32;

// The driver may block when its queue is full, and what drains the queue may need the GIL (a host callback).
class ReleasedGil {
 public:
    ReleasedGil() : state_(PyEval_SaveThread()) {}
    ~ReleasedGil() { PyEval_RestoreThread(state_); }
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
    PyThreadState* state_;
};

struct Extent {
    int64_t rows, columns;
};

// Strides of the matrix, past the groups that there may be; 0 of absent operands.
int64_t row_stride(const TensorView& view) { return view.rank == 3 ? view.strides[1] : view.strides[0]; }
int64_t column_stride(const TensorView& view) { return view.rank == 3 ? view.strides[2] : view.strides[1]; }

void set_scales(GemmParams& params, const TensorView& a, const TensorView& b) {
    params.scale_a = a.address, params.scale_b = b.address;
    params.scale_a_stride_mn = row_stride(a), params.scale_a_stride_k = column_stride(a);
    params.scale_b_stride_mn = row_stride(b), params.scale_b_stride_k = column_stride(b);
}

std::string product_text(const GemmSizes& sizes) {
    return "m = " + std::to_string(sizes.m) + ", n = " + std::to_string(sizes.n) + ", k = " + std::to_string(sizes.k);
}

[[noreturn]] void fail_launch(driver::Result result, const char* call, const std::string& what) {
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

// One cluster of split_k CTAs for each tile; such a grid is not persistent.
LaunchGeometry get_split_geometry(const Config& config, int64_t m_tiles, int64_t n_tiles, int sm_count) {
    const int64_t clusters = std::clamp<int64_t>(sm_count / config.split_k, 1, m_tiles * n_tiles);
    return {.num_ctas = uint32_t(m_tiles * n_tiles * config.split_k),
            .num_m_tiles = uint32_t(m_tiles),
            .num_n_tiles = uint32_t(n_tiles),
            .band = uint32_t(choose_band(config, m_tiles, clusters))};
}

// Not released for the call: a memset is rare here and never a loop's body.
void fill_rows(uint64_t address, Extent extent, int64_t pitch, Dtype dtype, void* stream) {
    const size_t width = size_t(extent.columns * element_bytes(dtype));
    const size_t row_pitch = extent.rows > 1 ? size_t(pitch) : width;
    const driver::Result result = driver::api().memset_d2d8_async(address, row_pitch, 0, width, size_t(extent.rows),
                                                                  static_cast<driver::Stream>(stream));
    if (result != driver::kSuccess) fail_launch(result, "cuMemsetD2D8Async", "the zero fill of d");
}

}  // namespace

int64_t choose_band(const Config& config, int64_t m_cluster_tiles, int64_t clusters) {
    int64_t best_band = 1, best_rows = INT64_MAX;
    for (int64_t band = 1; band <= std::min(kMaxBand, m_cluster_tiles); ++band) {
        const int64_t rows =
            band * config.cluster_m * config.block_m + ceil_div(clusters, band) * config.cluster_n * config.block_n;
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

LaunchGeometry get_geometry(const Config& config, const GemmSizes& sizes, int num_sms, int sm_count, int max_clusters) {
    const int64_t m_tiles = ceil_div(sizes.m, config.block_m), n_tiles = ceil_div(sizes.n, config.block_n);
    const int64_t m_cluster_tiles = ceil_div(m_tiles, config.cluster_m);
    const int64_t cluster_tiles = m_cluster_tiles * ceil_div(n_tiles, config.cluster_n);
    const int64_t cluster_size = int64_t(config.cluster_m) * config.cluster_n;
    if (cluster_tiles >= kMaxTiles / config.split_k)
        throw Error(ErrorKind::kShape, "m = " + std::to_string(sizes.m) + ", n = " + std::to_string(sizes.n) +
                                           ": more than 2^31 tiles of " + to_string(config) +
                                           "; split the product along n.");
    if (config.split_k > 1) return get_split_geometry(config, m_tiles, n_tiles, sm_count);
    const int64_t sms = num_sms > 0 ? std::min(num_sms, sm_count) : sm_count;
    int64_t clusters = std::max<int64_t>(sms / cluster_size, 1);
    if (max_clusters > 0) clusters = std::min<int64_t>(clusters, max_clusters);
    clusters = std::min(clusters, cluster_tiles);
    return {.num_ctas = uint32_t(clusters * cluster_size),
            .num_m_tiles = uint32_t(m_tiles),
            .num_n_tiles = uint32_t(n_tiles),
            .band = uint32_t(choose_band(config, m_cluster_tiles, clusters))};
}

GemmParams make_params(const LaunchGeometry& geometry, const GemmOperands& operands, const GemmSizes& sizes,
                       const GemmOptions& options) {
    GemmParams params{.d = operands.d.view.address,
                      .c = operands.c.view.address,
                      .d_stride_m = row_stride(operands.d.view),
                      .c_stride_m = row_stride(operands.c.view),
                      .m = uint32_t(sizes.m),
                      .n = uint32_t(sizes.n),
                      .k = uint32_t(sizes.k),
                      .num_m_tiles = geometry.num_m_tiles,
                      .num_n_tiles = geometry.num_n_tiles,
                      .band = geometry.band,
                      .alpha = options.alpha,
                      .beta = options.beta,
                      .head_left = uint32_t(options.heads.left),
                      .head_mid = uint32_t(options.heads.mid),
                      .head_right = uint32_t(options.heads.right)};
    set_scales(params, operands.scale_a.view, operands.scale_b.view);
    return params;
}

void launch_kernel(const LoadedKernel& kernel, unsigned num_ctas, const GemmSizes& sizes, void** arguments,
                   void* stream) {
    const KernelLaunch launch(kernel, num_ctas, static_cast<driver::Stream>(stream), get_pdl());
    const driver::Result result = enqueue_released(kernel.function(), launch.config, arguments);
    if (result != driver::kSuccess)
        fail_launch(result, "cuLaunchKernelEx", product_text(sizes) + " with " + to_string(kernel.config));
}

void launch_gemm(const LoadedKernel& kernel, const LaunchGeometry& geometry, const GemmOperands& operands,
                 const GemmSizes& sizes, const GemmOptions& options, void* stream) {
    const ContextGuard context(*kernel.gpu);  // the driver encodes no map without one
    GemmMaps maps = make_gemm_maps(driver::api(), kernel.problem, kernel.config, operands);
    GemmParams params = make_params(geometry, operands, sizes, options);
    void* arguments[] = {&maps.a, &maps.b, &maps.d, &maps.scale_a, &maps.scale_b, &params};
    launch_kernel(kernel, geometry.num_ctas, sizes, arguments, stream);
}

void enqueue(const Gpu& gpu, driver::Function function, const driver::LaunchConfig& config, void** arguments,
             const std::string& what) {
    const ContextGuard context(gpu);
    const driver::Result result = enqueue_released(function, config, arguments);
    if (result != driver::kSuccess) fail_launch(result, "cuLaunchKernelEx", what);
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
