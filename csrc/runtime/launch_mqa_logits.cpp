// Tensor maps, parameters and launch of the kernels of attention index logits.
#include <Python.h>

#include <numeric>
#include <string>

#include "core/error.hpp"
#include "core/logits.hpp"
#include "runtime/logits.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/policy.hpp"
#include "runtime/torch_calls.hpp"

namespace deep_gemm {
namespace {

constexpr uint32_t kTokenGroup = 4;  // most tokens that one load of queries brings

// Arguments of a kernel besides its tensor maps; the twin of MqaParams in deep_gemm/include/deep_gemm/mqa_types.cuh.
struct MqaParams {
    uint64_t first = 0, second = 0, schedule = 0, unused = 0, out = 0;  // addresses
    int64_t out_pitch = 0, lengths_stride = 0, table_stride = 0;        // elements
    uint32_t num_tokens = 0, columns = 0;
    uint32_t num_kv = 0;  // keys, or pages of a sequence
    uint32_t num_slots = 0;
    uint32_t flags = 0;
    uint32_t zero = 0;
    uint32_t reserved[2] = {};
};

static_assert(sizeof(MqaParams) == 96, "the kernel reads 96 bytes");

enum Flag : uint32_t { kClean = 1, kCompressed = 2, kLengthsPerToken = 4 };

struct MqaMaps {
    driver::TensorMap q, kv, scale, weights;
};

// Dims of a map, the contiguous one first, with the bytes from one entry of each further dim to the next, and the box
// that one load brings.
struct MapLayout {
    uint64_t address;
    uint32_t rank;
    uint64_t dims[4], strides[3];
    uint32_t box[4];
    int data_type, swizzle, promotion;
};

void encode(const driver::Api& cuda, const char* name, const MapLayout& layout, driver::TensorMap& map) {
    const uint32_t element_strides[4] = {1, 1, 1, 1};
    const driver::Result result = cuda.tensor_map_encode_tiled(
        &map, layout.data_type, layout.rank, reinterpret_cast<void*>(layout.address), layout.dims, layout.strides,
        layout.box, element_strides, driver::kInterleaveNone, layout.swizzle, layout.promotion, driver::kOobFillZeros);
    if (result != driver::kSuccess)
        throw Error(ErrorKind::kLayout, std::string(name) + ": the driver takes no tensor map of it: " +
                                            driver::describe(cuda, result) + "; pass a contiguous tensor.");
}

uint64_t align_16(int64_t bytes) { return uint64_t((bytes + 15) / 16 * 16); }

int swizzle_of_head(int64_t head_dim) {
    return head_dim == 128 ? driver::kSwizzle128B : head_dim == 64 ? driver::kSwizzle64B : driver::kSwizzle32B;
}

// The stride of `dim`, or `otherwise` where the dim has one entry and its stride may be anything.
uint64_t stride_of(const TensorView& view, int dim, int64_t otherwise) {
    return uint64_t(view.shape[dim] > 1 ? view.strides[dim] : otherwise);
}

MapLayout query_layout(const Call& call, const QuerySizes& query, const Config& config) {
    const TensorView& view = call.a.view;
    const uint32_t tokens = uint32_t(std::gcd(uint32_t(config.block_m), kTokenGroup)),
                   pairs = uint32_t(query.heads / 2);
    const uint64_t head = stride_of(view, view.rank - 2, query.head_dim);
    const uint64_t token = view.rank == 4 && view.shape[1] == 1
                               ? stride_of(view, 0, query.heads * int64_t(head))
                               : stride_of(view, view.rank - 3, query.heads * int64_t(head));
    return {view.address,
            4,
            {uint64_t(query.head_dim), 2, uint64_t(query.tokens), pairs},
            {head, token, 2 * head},
            {uint32_t(query.head_dim), 2, tokens, pairs},
            driver::kUint8,
            swizzle_of_head(query.head_dim),
            driver::kL2Promotion128B};
}

MapLayout key_layout(const TensorView& keys, int64_t head_dim) {
    const int64_t n = keys.shape[0], pitch = row_pitch_bytes(keys);
    return {keys.address,
            3,
            {uint64_t(head_dim), uint64_t(n), 1},
            {uint64_t(pitch), align_16(pitch * n)},
            {uint32_t(head_dim), uint32_t(kKeysPerStage), 1},
            driver::kUint8,
            swizzle_of_head(head_dim),
            driver::kL2Promotion256B};
}

MapLayout scale_layout(const TensorView& scales) {
    const int64_t n = scales.shape[0];
    return {scales.address,
            2,
            {uint64_t(n), 1},
            {align_16(4 * n)},
            {uint32_t(kKeysPerStage), 1},
            driver::kFloat32,
            driver::kSwizzleNone,
            driver::kL2Promotion128B};
}

uint64_t page_stride(const TensorView& cache) { return stride_of(cache, 0, cache.shape[1] * cache.shape[3]); }

MapLayout page_layout(const TensorView& cache, int64_t head_dim) {
    const uint64_t rows = uint64_t(cache.shape[1]);
    return {cache.address,
            3,
            {uint64_t(head_dim), rows, uint64_t(cache.shape[0])},
            {uint64_t(head_dim), page_stride(cache)},
            {uint32_t(head_dim), uint32_t(rows), 1},
            driver::kUint8,
            swizzle_of_head(head_dim),
            driver::kL2Promotion256B};
}

MapLayout page_scale_layout(const TensorView& cache, int64_t head_dim) {
    const uint64_t rows = uint64_t(cache.shape[1]);
    return {cache.address + rows * uint64_t(head_dim),
            2,
            {rows, uint64_t(cache.shape[0])},
            {page_stride(cache)},
            {uint32_t(rows), 1},
            driver::kFloat32,
            driver::kSwizzleNone,
            driver::kL2Promotion128B};
}

MapLayout weight_layout(const TensorView& weights, const Config& config) {
    return {weights.address,
            2,
            {uint64_t(weights.shape[1]), uint64_t(weights.shape[0])},
            {uint64_t(row_pitch_bytes(weights))},
            {uint32_t(weights.shape[1]), uint32_t(config.block_m)},
            driver::kFloat32,
            driver::kSwizzleNone,
            driver::kL2Promotion128B};
}

MqaMaps make_maps(const driver::Api& cuda, const Call& call, const QuerySizes& query, const Config& config) {
    const bool has_pages = op_kind(call.op).is_paged();
    const TensorView& keys = call.b.view;
    MqaMaps maps;
    encode(cuda, call.a.name, query_layout(call, query, config), maps.q);
    encode(cuda, call.b.name, has_pages ? page_layout(keys, query.head_dim) : key_layout(keys, query.head_dim),
           maps.kv);
    encode(cuda, has_pages ? call.b.name : call.scale_b.name,
           has_pages ? page_scale_layout(keys, query.head_dim) : scale_layout(call.scale_b.view), maps.scale);
    encode(cuda, call.scale_a.name, weight_layout(call.scale_a.view, config), maps.weights);
    return maps;
}

MqaParams make_params(const Call& call, const QuerySizes& query) {
    const LogitsOperands& logits = *call.logits;
    const TensorView &first = logits.first.view, &second = logits.second.view;
    const bool has_pages = op_kind(call.op).is_paged();
    MqaParams params{.first = first.address,
                     .second = second.address,
                     .schedule = logits.schedule.view.address,
                     .out = call.d.view.address,
                     .out_pitch = call.d.view.strides[0],
                     .num_tokens = uint32_t(query.tokens),
                     .columns = uint32_t(logits.columns),
                     .num_kv = uint32_t(has_pages ? second.shape[1] : call.b.view.shape[0])};
    if (logits.is_clean) params.flags |= kClean;
    if (logits.is_compressed) params.flags |= kCompressed;
    if (!has_pages) return params;
    if (first.rank == 2) params.flags |= kLengthsPerToken;
    params.lengths_stride = first.strides[0], params.table_stride = second.strides[0];
    params.num_slots = uint32_t(logits.schedule.view.shape[0] - 1);
    return params;
}

bool has_no_keys(const Call& call) {
    return call.b.view.shape[0] == 0 || (op_kind(call.op).is_paged() && call.logits->second.view.shape[1] == 0);
}

}  // namespace

void launch_logits(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, void* stream) {
    if (has_no_keys(call)) {
        if (call.logits->is_clean) fill_with_infinity(call.d, stream);
        return;
    }
    const ContextGuard context(*kernel.gpu);  // the driver encodes no map without one
    const QuerySizes query = query_sizes(call);
    MqaMaps maps = make_maps(driver::api(), call, query, kernel.config);
    MqaParams params = make_params(call, query);
    void* arguments[] = {&maps.q, &maps.kv, &maps.scale, &maps.weights, &params};
    const KernelLaunch launch(kernel, geometry.num_ctas, static_cast<driver::Stream>(stream), get_pdl());
    enqueue(kernel.function(), launch.config, arguments,
            [&] { return std::to_string(query.tokens) + " tokens with " + to_string(kernel.config); });
}

}  // namespace deep_gemm
