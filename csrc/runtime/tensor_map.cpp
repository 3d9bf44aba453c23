#include "runtime/tensor_map.hpp"

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

// Rows of a D box: what one math warp group of 64 rows stores at once.
constexpr uint32_t kStoreRows = 64;
constexpr int64_t kStoreColumns = 8;  // BF16 elements in 16 bytes

struct Box {
    int data_type;
    uint32_t columns, rows;
    int swizzle;
};

int swizzle_of_bytes(int bytes) {
    switch (bytes) {
        case 128: return driver::kSwizzle128B;
        case 64: return driver::kSwizzle64B;
        case 32: return driver::kSwizzle32B;
        default: return driver::kSwizzleNone;
    }
}

[[noreturn]] void fail(const driver::Api& cuda, driver::Result result, const char* name, const MatrixLayout& layout) {
    throw Error(ErrorKind::kLayout, std::string(name) + ": the driver takes no tensor map of " + std::to_string(layout.rows) + " rows of " +
                                        std::to_string(layout.columns) + " elements at a pitch of " + std::to_string(layout.pitch_bytes) +
                                        " bytes: " + driver::describe(cuda, result) + "; pass a contiguous tensor.");
}

void encode(const driver::Api& cuda, const char* name, const MatrixLayout& layout, const Box& box, driver::TensorMap& map) {
    const uint64_t dims[2] = {uint64_t(layout.columns), uint64_t(layout.rows)};
    const uint64_t strides[1] = {uint64_t(layout.pitch_bytes)};
    const uint32_t box_dims[2] = {box.columns, box.rows};
    const uint32_t element_strides[2] = {1, 1};
    const driver::Result result = cuda.tensor_map_encode_tiled(&map, box.data_type, 2, reinterpret_cast<void*>(layout.address), dims,
                                                               strides, box_dims, element_strides, driver::kInterleaveNone, box.swizzle,
                                                               driver::kL2Promotion256B, driver::kOobFillZeros);
    if (result != driver::kSuccess) fail(cuda, result, name, layout);
}

// Rows of A that one load brings. Without a peer, a matrix with fewer rows than a tile is cut to whole 8-row swizzle atoms: filling
// absent rows costs as much as loading them. The kernel counts the same bytes (fp8_gemm.cuh, load_bytes).
uint32_t load_rows_a(const Config& config, int64_t m) {
    if (config.cluster_n > 1) return uint32_t(config.block_m / config.cluster_n);
    return m < config.block_m ? uint32_t((m + 7) / 8 * 8) : uint32_t(config.block_m);
}

}  // namespace

int epilogue_slab(const Config& config) {
    int slab = 64;
    while (config.block_n % slab != 0) slab /= 2;
    return slab;
}

Fp8GemmMaps make_fp8_gemm_maps(const driver::Api& cuda, const Config& config, const MatrixLayout& a, const MatrixLayout& b,
                               const MatrixLayout& d) {
    const int slab = epilogue_slab(config);
    Fp8GemmMaps maps;
    encode(cuda, "a", a, {driver::kUint8, kBlockK, load_rows_a(config, a.rows), driver::kSwizzle128B}, maps.a);
    encode(cuda, "b", b, {driver::kUint8, kBlockK, uint32_t(config.block_n / config.cluster_m), driver::kSwizzle128B}, maps.b);
    // TMA clips a store at whole 16 bytes (seen on an H200: n = 9 wrote columns 9 to 15), so its map of D ends there and the kernel stores
    // what is left by itself.
    MatrixLayout whole = d;
    whole.columns = std::max<int64_t>(d.columns / kStoreColumns * kStoreColumns, kStoreColumns);
    encode(cuda, "d", whole, {driver::kBfloat16, uint32_t(slab), kStoreRows, swizzle_of_bytes(2 * slab)}, maps.d);
    return maps;
}

}  // namespace deep_gemm
