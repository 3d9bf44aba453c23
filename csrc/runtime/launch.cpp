#include "runtime/launch.hpp"

#include <Python.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "runtime/tensor_map.hpp"

namespace deep_gemm {
namespace {

// The kernel counts tiles in 32 bits and steps past the last by one grid.
constexpr int64_t kMaxTiles = int64_t(1) << 31;
constexpr int64_t kMaxBand = 32;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Cluster tiles along m that are walked together: a wave of `clusters` then covers a block of tiles `band` high, and the best
// band touches the fewest bytes of A and B (both are one byte an element).
int64_t choose_band(const Config& config, int64_t m_cluster_tiles, int64_t clusters) {
    int64_t best_band = 1, best_rows = INT64_MAX;
    for (int64_t band = 1; band <= std::min(kMaxBand, m_cluster_tiles); ++band) {
        const int64_t rows = band * config.cluster_m * config.block_m + ceil_div(clusters, band) * config.cluster_n * config.block_n;
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

MatrixLayout matrix_layout(const TensorView& view) { return {view.address, view.shape[0], view.shape[1], row_pitch_bytes(view)}; }

Fp8GemmParams make_params(const LaunchGeometry& geometry, const Fp8GemmOperands& operands, const GemmSizes& sizes, float alpha) {
    const TensorView& a = operands.scale_a.view;
    const TensorView& b = operands.scale_b.view;
    const TensorView& d = operands.d.view;
    return {.scale_a = a.address,
            .scale_b = b.address,
            .d = d.address,
            .scale_a_stride_m = a.strides[0],
            .scale_a_stride_k = a.strides[1],
            .scale_b_stride_n = b.strides[0],
            .scale_b_stride_k = b.strides[1],
            .d_stride_m = d.strides[0],
            .m = uint32_t(sizes.m),
            .n = uint32_t(sizes.n),
            .k = uint32_t(sizes.k),
            .num_m_tiles = geometry.num_m_tiles,
            .num_n_tiles = geometry.num_n_tiles,
            .band = geometry.band,
            .alpha = alpha,
            .reserved = 0};
}

std::string product_text(const GemmSizes& sizes) {
    return "m = " + std::to_string(sizes.m) + ", n = " + std::to_string(sizes.n) + ", k = " + std::to_string(sizes.k);
}

[[noreturn]] void fail_launch(driver::Result result, const char* call, const std::string& what) {
    const char* remedy = driver::is_sticky(result)
                             ? "; an earlier kernel of this process failed and its CUDA context is lost: restart the process."
                             : "; check the stream and the GPU's state, and report a config that never launches.";
    throw Error(ErrorKind::kLaunch, std::string(call) + " for " + what + ": " + driver::describe(driver::api(), result) + remedy);
}

driver::Result enqueue(const LoadedKernel& kernel, const LaunchGeometry& geometry, Fp8GemmMaps& maps, Fp8GemmParams& params, void* stream) {
    const KernelLaunch launch(kernel, geometry.num_ctas, static_cast<driver::Stream>(stream));
    void* arguments[] = {&maps.a, &maps.b, &maps.d, &params};
    return driver::api().launch_kernel_ex(&launch.config, kernel.function(), arguments, nullptr);
}

}  // namespace

LaunchGeometry get_geometry(const Config& config, const GemmSizes& sizes, int num_sms, int sm_count, int max_clusters) {
    const int64_t m_tiles = ceil_div(sizes.m, config.block_m), n_tiles = ceil_div(sizes.n, config.block_n);
    const int64_t m_cluster_tiles = ceil_div(m_tiles, config.cluster_m);
    const int64_t cluster_tiles = m_cluster_tiles * ceil_div(n_tiles, config.cluster_n);
    const int64_t cluster_size = int64_t(config.cluster_m) * config.cluster_n;
    if (cluster_tiles >= kMaxTiles)
        throw Error(ErrorKind::kShape, "m = " + std::to_string(sizes.m) + ", n = " + std::to_string(sizes.n) +
                                           ": more than 2^31 tiles of " + to_string(config) + "; split the product along n.");
    const int64_t sms = num_sms > 0 ? std::min(num_sms, sm_count) : sm_count;
    int64_t clusters = std::max<int64_t>(sms / cluster_size, 1);
    if (max_clusters > 0) clusters = std::min<int64_t>(clusters, max_clusters);
    clusters = std::min(clusters, cluster_tiles);
    return {.num_ctas = uint32_t(clusters * cluster_size),
            .num_m_tiles = uint32_t(m_tiles),
            .num_n_tiles = uint32_t(n_tiles),
            .band = uint32_t(choose_band(config, m_cluster_tiles, clusters))};
}

void launch_fp8_gemm(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Fp8GemmOperands& operands, const GemmSizes& sizes,
                     float alpha, void* stream) {
    Fp8GemmMaps maps = make_fp8_gemm_maps(driver::api(), kernel.config, matrix_layout(operands.a.view), matrix_layout(operands.b.view),
                                          matrix_layout(operands.d.view));
    Fp8GemmParams params = make_params(geometry, operands, sizes, alpha);
    driver::Result result;
    {
        const ContextGuard context(*kernel.gpu);
        const ReleasedGil released;
        result = enqueue(kernel, geometry, maps, params, stream);
    }
    if (result != driver::kSuccess) fail_launch(result, "cuLaunchKernelEx", product_text(sizes) + " with " + to_string(kernel.config));
}

void launch_zero_fill(const Gpu& gpu, const TensorView& d, void* stream) {
    const size_t width = size_t(d.shape[1] * element_bytes(d.dtype));
    const size_t pitch = d.shape[0] > 1 ? size_t(row_pitch_bytes(d)) : width;
    const ContextGuard context(gpu);
    // Not released for the call: a memset is rare here and never a loop's body.
    const driver::Result result =
        driver::api().memset_d2d8_async(d.address, pitch, 0, width, size_t(d.shape[0]), static_cast<driver::Stream>(stream));
    if (result != driver::kSuccess) fail_launch(result, "cuMemsetD2D8Async", "the zero fill of d");
}

}  // namespace deep_gemm
