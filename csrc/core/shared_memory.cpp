// Shared memory of a CTA: what the kernels lay out in gemm_layout.cuh.
#include <algorithm>

#include "core/legality.hpp"
#include "core/logits.hpp"

namespace deep_gemm {
namespace {

int scale_ring_buffers(const Problem& problem, const Config& config) {
    if (!has_scale_ring(problem)) return 0;
    return math_warpgroups(config) == 1 ? 4 : 2;
}

// Block scales of B for which a plain tile has room: two, or as many as one can meet whose warpgroups stand side by
// side.
int count_blocks(const Config& config) { return is_beside(config) ? max_b_scale_blocks(config.block_n) : 2; }

// Most B scales that one K step of a tile needs in its stage.
int64_t b_scales(const Problem& problem, const Config& config) {
    if (config.scale_warp != 0) return 0;
    if (problem.recipe == Recipe::k1d1d) return config.block_n;
    return config.swap_ab != 0 ? std::max(1, config.block_n / kScaleBlock) : count_blocks(config);
}

int64_t stage_scale_bytes(const Problem& problem, const Config& config) {
    if (!has_scale_vectors(problem) || has_scale_ring(problem)) return 0;
    return align_up(int64_t(config.block_m) * 4, 128) + align_up(b_scales(problem, config) * 4, 128);
}

int64_t scale_ring_bytes(const Problem& problem, const Config& config) {
    const int64_t pitch =
        int64_t(config.block_m) + (problem.recipe == Recipe::k1d1d ? config.block_n : count_blocks(config));
    return align_up(scale_ring_buffers(problem, config) * kRingSteps * 4 * pitch, 128);
}

// Buffers of block scales, and their barriers.
int64_t block_buffer_bytes(const Config& config) {
    return config.scale_warp != 0 ? int64_t(kBlockBuffers) * count_blocks(config) * kBlockSteps * 4 : 0;
}
int block_barriers(const Config& config) { return config.scale_warp != 0 ? 2 * kBlockBuffers : 0; }

// What the other CTAs of a split send: a CTA adds up its share of the columns, 16 bytes a thread and 8 columns.
int64_t receive_bytes(const Config& config) {
    if (config.split_k <= 1) return 0;
    const int64_t groups = columns_per_warpgroup(config) / 8;
    return config.split_k * ((groups + config.split_k - 1) / config.split_k) * 128 * math_warpgroups(config) * 16;
}

// Whether C is loaded into a D tile and added to there.
bool loads_c(const Problem& problem, const Config& config) {
    return problem.c_mode == CMode::kAccumulate && is_staged(problem, config) && config.reduce_add == 0;
}

// One for what a split receives; two for each D tile and math warpgroup whose C is loaded there.
int epilogue_barriers(const Problem& problem, const Config& config, int d_tiles) {
    if (config.split_k > 1) return 1;
    return loads_c(problem, config) ? 2 * d_tiles * math_warpgroups(config) : 0;
}

int64_t smem_bytes_with(const Problem& problem, const Config& config, int d_tiles) {
    const int64_t num_barriers = 2 * (int64_t(config.num_stages) + scale_ring_buffers(problem, config)) +
                                 epilogue_barriers(problem, config, d_tiles) + block_barriers(config);
    const int64_t stage =
        (int64_t(config.block_m) + config.block_n) * kStageKBytes + stage_scale_bytes(problem, config);
    return kSmemAlignment + d_tiles * d_tile_bytes(problem, config) + config.num_stages * stage +
           receive_bytes(config) + align_up(num_barriers * 8, 128) + scale_ring_bytes(problem, config) +
           block_buffer_bytes(config) + (op_kind(problem.op).is_grouped() ? kTileQueueBytes : 0);
}

}  // namespace

int64_t d_tile_bytes(const Problem& problem, const Config& config) {
    return align_up(int64_t(config.block_m) * config.block_n * d_element_bytes(problem), kSmemAlignment);
}

int64_t smem_bytes(const Problem& problem, const Config& config) {
    return has_two_d_tiles(problem, config) ? smem_bytes_with(problem, config, 2)
                                            : smem_bytes_of_one_d_tile(problem, config);
}

int64_t smem_bytes_of_one_d_tile(const Problem& problem, const Config& config) {
    if (is_logits(problem)) return logits_smem_bytes(problem, config);
    return smem_bytes_with(problem, config, is_staged(problem, config) ? 1 : 0);
}

bool has_two_d_tiles(const Problem& problem, const Config& config) {
    return loads_c(problem, config) && math_warpgroups(config) > 1 &&
           smem_bytes_with(problem, config, 2) <= kSm90SmemBytes;
}

}  // namespace deep_gemm
