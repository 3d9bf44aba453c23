#include "runtime/tensor_map.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "core/legality.hpp"
#include "runtime/operand_checks.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kSwizzleBytes = 128;
constexpr uint32_t kWaveRows = 64;  // rows of D that one math warpgroup holds at once
// BF16 elements of a swizzle row, and rows of K, in an MN-major box.
constexpr uint32_t kMnBoxElements = 64;
// TMA clips a store at whole units of 16 bytes (seen on an H200: n = 9 wrote columns 9 to 15).
constexpr int64_t kStoreBytes = 16;

// Matrices as a map sees them: `rows` rows of `columns` contiguous elements each.
struct MatrixLayout {
    uint64_t address;
    int64_t rows, columns;
    int64_t pitch_bytes;  // a multiple of 16, below 2^40
    int64_t groups = 1, group_pitch_bytes = kPitchAlignment;
};

// Dims of a map: a matrix, or the groups of matrices.
enum Rank : uint32_t { kMatrix = 2, kGroups = 3 };

struct Box {
    int data_type;
    uint32_t columns, rows;
    int swizzle, promotion;
};

int map_data_type(Dtype dtype) {
    switch (dtype) {
        case Dtype::kBfloat16: return driver::kBfloat16;
        case Dtype::kFloat32: return driver::kFloat32;
        default: return driver::kUint8;
    }
}

MatrixLayout matrix_layout(const TensorView& view) {
    const int row = view.rank - 2;
    return {view.address,
            view.shape[row],
            view.shape[row + 1],
            row_pitch_bytes(view),
            row > 0 ? view.shape[0] : 1,
            group_pitch_bytes(view)};
}

[[noreturn]] void fail(const driver::Api& cuda, driver::Result result, const char* name, const MatrixLayout& layout) {
    const std::string groups = layout.groups == 1 ? ""
                                                  : ", " + std::to_string(layout.groups) + " groups at " +
                                                        std::to_string(layout.group_pitch_bytes);
    throw Error(ErrorKind::kLayout, std::string(name) + ": the driver takes no tensor map of " +
                                        std::to_string(layout.rows) + " rows of " + std::to_string(layout.columns) +
                                        " elements at a pitch of " + std::to_string(layout.pitch_bytes) + groups +
                                        " bytes: " + driver::describe(cuda, result) + "; pass a contiguous tensor.");
}

void encode(const driver::Api& cuda, const char* name, const MatrixLayout& layout, const Box& box, Rank rank,
            driver::TensorMap& map) {
    const uint64_t dims[3] = {uint64_t(layout.columns), uint64_t(layout.rows), uint64_t(layout.groups)};
    const uint64_t strides[2] = {uint64_t(layout.pitch_bytes), uint64_t(layout.group_pitch_bytes)};
    const uint32_t box_dims[3] = {box.columns, box.rows, 1};
    const uint32_t element_strides[3] = {1, 1, 1};
    const driver::Result result = cuda.tensor_map_encode_tiled(
        &map, box.data_type, rank, reinterpret_cast<void*>(layout.address), dims, strides, box_dims, element_strides,
        driver::kInterleaveNone, box.swizzle, box.promotion, driver::kOobFillZeros);
    if (result != driver::kSuccess) fail(cuda, result, name, layout);
}

// A tile of a K-major operand, of which one load brings `rows` rows.
Box k_major_box(Dtype dtype, uint32_t rows) {
    const uint32_t columns = kSwizzleBytes / uint32_t(element_bytes(dtype));
    return {map_data_type(dtype), columns, rows, driver::kSwizzle128B, driver::kL2Promotion256B};
}

// `box_rows`: rows of the operand that one load of a K-major tile brings.
void encode_input(const driver::Api& cuda, const Operand& operand, Major major, uint32_t box_rows, Rank rank,
                  driver::TensorMap& map) {
    Box box = k_major_box(operand.view.dtype, box_rows);
    if (major == Major::kK) return encode(cuda, operand.name, matrix_layout(operand.view), box, rank, map);
    box.columns = box.rows = kMnBoxElements;
    encode(cuda, operand.name, matrix_layout(transposed(operand).view), box, rank, map);
}

// Rows of the last tile of A, which has a map of its own, or 0 where A fills whole tiles or the kernel loads all rows
// of a tile regardless. The kernel has the same rule (loader.cuh).
uint32_t count_tail_rows(const Problem& problem, const Config& config, const Call& call, int64_t m) {
    if (config.cluster_n > 1 || problem.a_major != Major::kK || call.needs_group_maps()) return 0;
    return uint32_t(m % config.block_m);
}

// How the columns of a tile of D leave shared memory: in slabs of as many as divide the tile, swizzled, or whole, where
// those would be narrow. The kernel has the same rule, and says why (store_tile.cuh).
struct Slab {
    uint32_t columns;
    int swizzle;
};

Slab find_slab(const Config& config, int64_t element) {
    const int64_t columns = config.swap_ab != 0 ? int64_t(kWaveRows) : columns_per_warpgroup(config),
                  fitting = std::gcd(columns * element, kSwizzleBytes);
    const bool is_tall = config.block_m > 64 || is_beside(config);
    const bool is_whole = fitting < 32 || (fitting == 32 && (is_tall || columns > 128));
    if (is_whole) return {uint32_t(columns), driver::kSwizzleNone};
    return {uint32_t(fitting / element), fitting == 128  ? driver::kSwizzle128B
                                         : fitting == 64 ? driver::kSwizzle64B
                                                         : driver::kSwizzle32B};
}

// The map ends at the last whole 16 bytes of a row; what is left the kernel stores by itself.
void encode_d(const driver::Api& cuda, const Config& config, const Operand& d, Rank rank, driver::TensorMap& map) {
    const int64_t element = element_bytes(d.view.dtype), unit = kStoreBytes / element;
    const Slab slab = find_slab(config, element);
    MatrixLayout whole = matrix_layout(d.view);
    whole.columns = std::max(whole.columns / unit * unit, unit);
    const uint32_t rows = config.swap_ab != 0 ? uint32_t(config.block_m) : kWaveRows;
    encode(cuda, d.name, whole,
           {map_data_type(d.view.dtype), slab.columns, rows, slab.swizzle, driver::kL2Promotion256B}, rank, map);
}

// A vector of `box_rows` scales of one K step: rows of the map are K steps.
void encode_scales(const driver::Api& cuda, const Operand& scales, int box_rows, Rank rank, driver::TensorMap& map) {
    const Box box{driver::kFloat32, uint32_t(box_rows), 1, driver::kSwizzleNone, driver::kL2Promotion128B};
    encode(cuda, scales.name, matrix_layout(transposed(scales).view), box, rank, map);
}

// One group [rows, k] over all of K; K is a multiple of 128.
void encode_block(const driver::Api& cuda, const Operand& operand, int64_t rows, int64_t k, uint32_t box_rows,
                  driver::TensorMap& map) {
    encode(cuda, operand.name, {operand.view.address, rows, k, k}, k_major_box(operand.view.dtype, box_rows), kGroups,
           map);
}

void encode_inputs(const driver::Api& cuda, const Problem& problem, const Config& config, const Call& call,
                   const Sizes& sizes, Rank rank, TensorMaps& maps) {
    const uint32_t rows_a = uint32_t(config.block_m / config.cluster_n),
                   rows_b = uint32_t(config.block_n / config.cluster_m),
                   tail_rows = count_tail_rows(problem, config, call, sizes.m);
    if (call.has_blocks()) {
        encode_block(cuda, call.a, sizes.m, sizes.k, rows_a, maps.a);
        encode_block(cuda, call.b, sizes.n, sizes.k, rows_b, maps.b);
    } else {
        if (sizes.m >= rows_a || tail_rows == 0) encode_input(cuda, call.a, problem.a_major, rows_a, rank, maps.a);
        if (tail_rows > 0) encode_input(cuda, call.a, problem.a_major, tail_rows, rank, maps.a_tail);
        encode_input(cuda, call.b, problem.b_major, rows_b, rank, maps.b);
    }
}

}  // namespace

TensorMaps make_tensor_maps(const driver::Api& cuda, const Problem& problem, const Config& config, const Call& call,
                            const Sizes& sizes) {
    TensorMaps maps;
    const Rank rank = is_grouped(problem.op) ? kGroups : kMatrix;
    encode_inputs(cuda, problem, config, call, sizes, rank, maps);
    if (is_staged(problem, config)) encode_d(cuda, config, call.d, rank, maps.d);
    if (!has_scale_vectors(problem) || has_scale_ring(problem)) return maps;
    encode_scales(cuda, call.scale_a, config.block_m, rank, maps.scale_a);
    if (problem.recipe == Recipe::k1d1d) encode_scales(cuda, call.scale_b, config.block_n, rank, maps.scale_b);
    return maps;
}

}  // namespace deep_gemm
