#include "runtime/sum_parts.hpp"

#include <algorithm>

#include "runtime/operand_checks.hpp"
#include "runtime/sum_products.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kColumnsOfThread = 4;  // one load of 16 bytes
constexpr int64_t kMaxCtasOfSm = 8;      // of 256 threads
constexpr int64_t kMaxGrid = INT32_MAX;

PlainKernel& sum_parts_kernel(const SumVariant& variant) {
    static SumKernels kernels("sum_parts");
    return kernels.of(variant);
}

// FP32 [num_parts, m, n] at `address`, its rows a multiple of 16 bytes apart.
TensorView parts_view(const TensorView& d, uint64_t address, int64_t num_parts, const Sizes& sizes) {
    TensorView view = d;
    const int64_t pitch = ceil_div(sizes.n, kColumnsOfThread) * kColumnsOfThread;
    view.address = address, view.dtype = Dtype::kFloat32, view.rank = 3;
    view.shape = {num_parts, sizes.m, sizes.n}, view.strides = {sizes.m * pitch, pitch, 1};
    return view;
}

void add_parts(PlainKernel& kernel, const Gpu& gpu, const TensorView& parts, const Call& call, int num_sms,
               void* stream) {
    uint64_t from = parts.address, c = call.c.view.address, d = call.d.view.address;
    int64_t part_pitch = parts.strides[0], pitch = parts.strides[1];
    int64_t d_pitch = call.d.view.strides[0], c_pitch = call.c.view.strides[0];
    uint32_t num_parts = uint32_t(parts.shape[0]), m = uint32_t(parts.shape[1]), n = uint32_t(parts.shape[2]);
    const int64_t ctas = ceil_div(parts.shape[1] * (pitch / kColumnsOfThread), kThreads);
    const int64_t most = num_sms > 0 ? num_sms * kMaxCtasOfSm : kMaxGrid;
    void* arguments[] = {&from, &c, &d, &part_pitch, &pitch, &c_pitch, &d_pitch, &num_parts, &m, &n};
    launch_plain(kernel, gpu, {.grid = {unsigned(std::min(ctas, most))}, .threads = kThreads}, arguments, stream);
}

}  // namespace

void launch_summed(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, const Sizes& sizes,
                   int num_sms, void* stream) {
    if (geometry.is_small_sum) return launch_small_sum(*kernel.gpu, call, sizes, stream);
    const TensorView& d = call.d.view;
    if (geometry.num_parts == 1 && d.dtype == Dtype::kFloat32 && !call.c.is_present())
        return launch(kernel, geometry, call, sizes, 0, stream);
    PlainKernel& summing = sum_parts_kernel(sum_variant(call));
    summing.get(*kernel.gpu);  // before memory is taken: compiling may fail
    TensorView parts = parts_view(d, 0, geometry.num_parts, sizes);
    const int64_t row_bytes = parts.strides[1] * int64_t(sizeof(float));
    const Reference memory = empty_fp8(parts.shape[0] * sizes.m, row_bytes, d.ordinal, stream_handle(stream, d).get());
    parts.address = make_operand("parts", memory.get()).view.address;
    Call partial = call;
    partial.c = {}, partial.d.view = parts;
    launch(kernel, geometry, partial, sizes, 0, stream);
    add_parts(summing, *kernel.gpu, parts, call, num_sms, stream);
}

void load_sum_kernel(const Gpu& gpu, bool is_small, const SumVariant& variant) {
    (is_small ? sum_products_kernel(variant) : sum_parts_kernel(variant)).get(gpu);
}

}  // namespace deep_gemm
