#include "core/candidates.hpp"

#include <algorithm>

#include "core/grid.hpp"
#include "core/loop_rule.hpp"

namespace deep_gemm {
namespace {

constexpr int kBlockMs[] = {64, 128, 256};
// Multiples of 8 up to 72, where narrow shapes need fine steps, then widths that fill the waves of common weights. FP8
// leaves out those that meet three B scales or need too many registers, but has 64 rows by 224 and 256 columns, by two
// math warpgroups side by side. Widths below 32 lose to swapped tiles.
constexpr int kBlockNs[] = {32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 136, 144, 160, 176, 192, 208, 224, 256};
// Two vectors of scales alone: of 66 products in groups of K 128x152 is the best tile of 27, by up to 6 % (H100). With
// it the heuristic loses 4.9 % (6.7 without), on 14 dense ones 3.5 (3.2).
constexpr int kVectorBlockN = 152;
// Narrower tiles of 128 rows never won: nearly all of a stage is then A. Some of 256 rows did, because their two 64-row
// MMAs share the column scales of 1d1d, but none between these two widths, except where blocks of B have one scale:
// (1698, 6080, 17280) takes 287 us with 256x112, which fills three waves, and 305 with the next best (H100).
constexpr int kMinBlockN128 = 64, kNarrowBlockN256 = 64, kBlockScaledN256 = 112, kMinBlockN256 = 128;
// Plain tiles that are also split, and how often: the middle between decode and grids that fill the SMs. 64x40 was
// timed in FP8 alone (H200, (64, 576, 7168): 4.42 us in eight parts, 4.54 with the best before).
struct SplitTile {
    int block_m, block_n, max_split;
    bool is_fp8_alone = false;
};
constexpr SplitTile kSplitTiles[] = {{64, 32, 4},  {64, 48, 4},  {64, 64, 8},      {64, 96, 4},
                                     {128, 64, 4}, {128, 96, 4}, {64, 40, 8, true}};
constexpr int kClusters[][2] = {{1, 1}, {2, 1}, {1, 2}};
// Swapped tiles: the MMA's rows, which take n, and its columns, which take the tokens.
constexpr int kSwappedRows[] = {64, 128};
constexpr int kTokens[] = {8, 16, 24, 32, 48, 64};
// More tokens in BF16, so that the last tile is nearly full (H100, (404, 4096, 4096): 19.9 us with 104x128, 23.6 with
// the best plain tile, whose rows are multiples of 64). FP8 reads a scale for each column of the MMA there: 0.99
// to 1.49 times the best plain tile.
constexpr int kWideTokens[] = {72, 80, 88, 96, 104, 112, 120, 136, 152, 160, 176, 192, 208, 224, 240};
constexpr int kWideSwappedRows = 128;
constexpr int kMostWideRows = 512;  // of a masked group
constexpr int kSplits[] = {1, 2, 4, 8};
// Masked groups have few tokens and read much weight: 40 tokens and 256 rows of the weight win there (H200, 32 groups
// of 20 rows, n 6144, k 7168: 337 us with 32x256, 339 with 32x128).
constexpr int kMaskedRows[] = {64, 128, 256};
constexpr int kMaskedTokens[] = {8, 16, 24, 32, 40, 48, 64};
constexpr int kMnMajorUnit = 64;  // tile sides of MN-major operands are multiples of it
// Clusters of two pay for tiles that read much.
constexpr int kMinClusterM = 128, kMinClusterN = 128;
// A plain tile of 64 rows up to this width is for decode, where a shallower ring can pay.
constexpr int kMaxShallowN = 64;
constexpr int64_t kMaxSplitWaves = 3;  // more waves keep all SMs busy without a split
// More stages than this hold over 200 KB in flight for every tile, beyond what an SM can keep outstanding.
constexpr int kDeepestRing = 24;

template <size_t size>
int smallest_cover(const int (&sides)[size], int64_t extent) {
    const auto cover = std::lower_bound(std::begin(sides), std::end(sides), extent);
    return cover == std::end(sides) ? sides[size - 1] : *cover;
}

// The deepest ring of at most `stages` that `fits` accepts, or 0.
template <typename Fits>
int deepest_ring(Config config, int stages, Fits&& fits) {
    for (config.num_stages = stages; config.num_stages >= kMinStages; --config.num_stages)
        if (fits(config)) return config.num_stages;
    return 0;
}

// The deepest ring with which `blocks` CTAs fit the shared memory of an SM.
int shared_ring(const Problem& variant, const Config& config, int stages, int blocks) {
    return deepest_ring(config, stages, [&](const Config& c) {
        return blocks * (smem_bytes(variant, c) + kSmemReservedBytes) <= kSmSmemBytes;
    });
}

constexpr int kMinAheadStages = 4;

// The tile with the deepest ring that leaves room for C one tile ahead, where that is not the deepest of all. In a
// sweep of 220 problems onto C it was the best in 21, with 4 stages or more.
void append_ahead(std::vector<Config>& space, const Problem& variant, Config config) {
    const int deepest = config.num_stages;
    config.num_stages = deepest_ring(config, deepest, [&](const Config& c) { return has_two_d_tiles(variant, c); });
    const bool is_worth_it = config.swap_ab == 0 && config.num_stages >= kMinAheadStages;
    if (is_worth_it && config.num_stages < deepest) space.push_back(config);
}

// Whether registers, by their estimate, allow the third CTA that memory was left for. Where they do not, such a ring
// was the best in none of 27 dense products (H200). Splits and groups have it all the same: a few gain 1 % by it.
bool has_registers(const Problem& variant, const Config& config, int blocks) {
    return blocks < 3 || config.split_k > 1 || is_grouped(variant.op) || blocks_per_sm(variant, config) >= blocks;
}

// The tile with rings for one and two CTAs to an SM, and for three where it is swapped and may gain by it. The CTAs of
// a split must share their SMs, or the clusters do not all fit at once. Narrow tiles gain from a shallower ring even
// where no second CTA runs beside them (H200, m 16, n 24576, k 1536: 12.0 us against 12.5).
void append_rings(std::vector<Config>& space, const Problem& variant, Config config, const Device& device) {
    config.num_stages = deepest_ring(config, kDeepestRing,
                                     [&](const Config& c) { return smem_bytes(variant, c) <= device.smem_bytes; });
    if (!is_legal(variant, config, device)) return;
    const bool is_small = math_warpgroups(config) == 1 && (config.swap_ab != 0 || config.block_n <= kMaxShallowN);
    const bool is_split = config.split_k > 1;
    const int deepest = config.num_stages, most_blocks = config.swap_ab != 0 ? kMaxBlocksPerSm : 2;
    if (!is_split || !is_small) space.push_back(config);
    append_ahead(space, variant, config);
    for (int blocks = 2; is_small && blocks <= most_blocks; ++blocks) {
        config.num_stages = shared_ring(variant, config, deepest, blocks);
        const bool is_new = config.num_stages >= kMinStages && config != space.back();
        if (is_new && has_registers(variant, config, blocks)) space.push_back(config);
    }
}

// FP8 with an FP32 D that is stored directly, in the widest tile: of masked kernels 32 bytes a thread, 60 to 112 with
// blocks of scales; of those for groups of K 32.
bool spills_without_ring(const Problem& variant, const Config& config) {
    const OpKind& kind = op_kind(variant.op);
    const bool is_widest = config.block_m == 128 && config.block_n == 192 && config.cluster_m * config.cluster_n == 1,
               is_plain = variant.d_dtype == DDtype::kFp32 && variant.c_mode == CMode::kNone;
    return variant.recipe != Recipe::kPerRow && is_widest && is_plain && (kind.has_room() || kind.k_is_divided());
}

// FP8 with scales per row, in the largest tile, with an FP32 D or with C: 232 to 264 bytes a thread. With blocks of
// scales and an FP32 D: 8 to 80 in 64x136.
bool spills_by_d(const Problem& variant, const Config& config) {
    const auto has_sides = [&](int m, int n) { return config.block_m == m && config.block_n == n; };
    const bool is_fp32 = variant.d_dtype == DDtype::kFp32;
    if (variant.recipe == Recipe::kPerRow) return has_sides(256, 128) && (is_fp32 || variant.c_mode != CMode::kNone);
    return variant.recipe == Recipe::k1d2d && has_sides(64, 136) && is_fp32;
}

// BF16 in pairs with an FP32 D that is stored directly: up to 24 bytes a thread.
bool spills_in_pairs(const Problem& variant, const Config& config) {
    const bool is_pair = config.cluster_m * config.cluster_n > 1, is_plain = variant.c_mode == CMode::kNone;
    return is_pair && config.block_m == 128 && config.block_n > 208 && is_plain && variant.d_dtype == DDtype::kFp32;
}

// Tiles that fit the registers by the estimate, but that the compiler spilled. FP8 tiles with scales in a ring: 64x144
// with block scales; with two vectors, 128 bytes a thread where C is loaded into the D tile, 48 in the widest with a
// queue of tiles. BF16: the widest tile of masked, batched and summed kernels, and of kernels for groups of K that
// store directly without reading C.
bool spills(const Problem& variant, const Config& config) {
    const OpKind& kind = op_kind(variant.op);
    const bool is_widest = config.block_m == 256 && config.block_n == 192,
               accumulates = variant.c_mode == CMode::kAccumulate;
    if (!kind.is_fp8)
        return spills_in_pairs(variant, config) ||
               (is_widest && (kind.has_room() || kind.is_batched() || kind.is_summed() ||
                              (kind.k_is_divided() && variant.c_mode == CMode::kNone)));
    if (spills_by_d(variant, config)) return true;
    if (!has_scale_ring(variant)) return spills_without_ring(variant, config);
    if (config.block_m == 64) return variant.recipe == Recipe::k1d2d && config.block_n == 144;
    if (variant.recipe != Recipe::k1d1d || config.block_m != 128) return false;
    const bool is_too_wide = accumulates && (config.block_n == 136 || config.block_n == 160);
    return is_too_wide || (kind.is_grouped() && config.block_n == 192);
}

// The widths of tiles of `block_m` rows.
std::vector<int> list_block_ns(const Problem& variant, int block_m) {
    std::vector<int> widths(std::begin(kBlockNs), std::end(kBlockNs));
    if (block_m == 128 && has_scale_vectors(variant) && !has_scale_ring(variant) && variant.recipe == Recipe::k1d1d)
        widths.insert(std::upper_bound(widths.begin(), widths.end(), kVectorBlockN), kVectorBlockN);
    return widths;
}

// Tiles whose warpgroups stand side by side waste fewer rows than those of 128: the heuristic loses less with them
// (docs/kernels.md). Up to 64 rows they lose to others, so the pruning leaves them out there. Dense products have them
// as far as they were swept with them: with block scales, a BF16 D and no C. Other op kinds were not.
bool takes_beside(const Problem& variant) {
    const bool is_plain = variant.d_dtype == DDtype::kBf16 && variant.c_mode == CMode::kNone;
    return op_kind(variant.op).has_room() ||
           (!op_kind(variant.op).is_grouped() && variant.recipe == Recipe::k1d2d && is_plain);
}

// Whether tiles of 256 rows have this width.
bool is_tall_width(const Problem& variant, int block_n) {
    if (block_n == kBlockScaledN256) return has_scale_vectors(variant) && variant.recipe == Recipe::k1d2d;
    return block_n == kNarrowBlockN256 || block_n >= kMinBlockN256;
}

void append_plain(std::vector<Config>& space, const Problem& variant, const Device& device) {
    // In a cluster of two, two scale vectors through the ring leave too few registers (128x144 and wider spill), and so
    // does one where threads read C for two 64-row MMAs (256x128), or where the loading warp finds tiles of two groups
    // (128x128).
    const bool is_ring = has_scale_ring(variant),
               reads_c = variant.c_mode == CMode::kAccumulate || variant.c_mode == CMode::kGeneral,
               shares_m = op_kind(variant.op).m_is_shared();
    for (int block_m : kBlockMs)
        for (int block_n : list_block_ns(variant, block_m))
            for (const auto& [cluster_m, cluster_n] : kClusters) {
                if (block_m == 128 && block_n < kMinBlockN128) continue;
                if (block_m == 256 && !is_tall_width(variant, block_n)) continue;
                const bool finds_two = cluster_m == 2 && shares_m;
                const bool is_crowded =
                    is_ring && (variant.recipe == Recipe::k1d1d || (reads_c && block_m == 256) || finds_two);
                if (cluster_m * cluster_n > 1 && (block_m < kMinClusterM || block_n < kMinClusterN || is_crowded))
                    continue;
                const Config config{.block_m = block_m,
                                    .block_n = block_n,
                                    .block_k = stage_k(variant.op),
                                    .cluster_m = cluster_m,
                                    .cluster_n = cluster_n};
                if (is_beside(config) && !takes_beside(variant)) continue;
                if (!spills(variant, config)) append_rings(space, variant, config, device);
            }
}

void append_plain_splits(std::vector<Config>& space, const Problem& variant, const Device& device) {
    for (const SplitTile& tile : kSplitTiles) {
        if (tile.is_fp8_alone && !is_fp8(variant.op)) continue;
        for (int split = 2; split <= tile.max_split; split *= 2)
            append_rings(
                space, variant,
                {.block_m = tile.block_m, .block_n = tile.block_n, .block_k = stage_k(variant.op), .split_k = split},
                device);
    }
}

void append_masked(std::vector<Config>& space, const Problem& variant, const Device& device) {
    for (int rows : kMaskedRows)
        for (int tokens : kMaskedTokens)
            append_rings(space, variant,
                         {.block_m = tokens, .block_n = rows, .block_k = stage_k(variant.op), .swap_ab = 1}, device);
}

void append_swapped(std::vector<Config>& space, const Problem& variant, const Device& device) {
    for (int rows : kSwappedRows)
        for (int tokens : kTokens)
            for (int split : kSplits) {
                if (rows == 128 && split == kMaxSplitK) continue;
                append_rings(space, variant,
                             {.block_m = tokens,
                              .block_n = rows,
                              .block_k = stage_k(variant.op),
                              .split_k = split,
                              .swap_ab = 1},
                             device);
            }
}

// Batched products were not timed with them. Groups that share their rows have tiles that divide the alignment.
bool takes_wide_swapped(const OpKind& kind) {
    return !kind.is_fp8 && !kind.k_is_divided() && !kind.is_summed() && !kind.m_is_shared() && !kind.is_batched();
}

void append_wide_swapped(std::vector<Config>& space, const Problem& variant, const Device& device) {
    if (!takes_wide_swapped(op_kind(variant.op))) return;
    for (int tokens : kWideTokens)
        append_rings(space, variant,
                     {.block_m = tokens, .block_n = kWideSwappedRows, .block_k = stage_k(variant.op), .swap_ab = 1},
                     device);
}

}  // namespace

std::vector<Config> get_default_space(const Problem& variant, const Device& device) {
    Problem any = variant;  // num_sms and batch_invariant are a problem's own
    any.num_sms = 0;
    any.batch_invariant = false;
    if (is_logits(any)) return get_logits_space(any, device);
    std::vector<Config> space;
    space.reserve(kMaxCandidates);
    append_plain(space, any, device);
    append_plain_splits(space, any, device);
    const OpKind& kind = op_kind(variant.op);
    // Groups of K, and sums over groups, give weight gradients, whose m is no small number of tokens.
    if (kind.has_room() || kind.is_batched())
        append_masked(space, any, device);
    else if (!kind.k_is_divided() && !kind.is_summed())
        append_swapped(space, any, device);
    append_wide_swapped(space, any, device);
    return space;
}

Pruning::Pruning(const Problem& problem, const Device& device)
    : m(rows_per_group(problem)),
      n(problem.n),
      k_steps(count_steps(problem.k, problem.op)),
      num_groups(op_kind(problem.op).is_summed() ? 1 : std::max(problem.num_groups, 1)),
      few_rows(!op_kind(problem.op).m_is_shared()     ? 0
               : problem.alignment % kBlockMs[0] == 0 ? kPaddedRows
                                                      : problem.m),
      sms(usable_sms(problem, device)),
      alignment(group_alignment(problem)),
      // Some groups hold more than most.
      cover_m(op_kind(problem.op).has_room()     ? smallest_cover(kMaskedTokens, 2 * m)
              : op_kind(problem.op).is_batched() ? smallest_cover(kMaskedTokens, m)
                                                 : smallest_cover(kTokens, m)),
      takes_wide(takes_wide_swapped(op_kind(problem.op))),
      wide_m(op_kind(problem.op).has_room() ? smallest_cover(kWideTokens, 2 * m) : 0),
      cover_n(std::max(smallest_cover(kBlockNs, problem.n), problem.b_major == Major::kMn ? kMnMajorUnit : 0)),
      // Of an MN-major B whole units alone. Groups of few rows, for which taller tiles are left out, would else have no
      // tile at all where A is MN-major, too: groups of K, and batched products.
      widest_n(op_kind(problem.op).is_grouped() && problem.a_major == Major::kMn && problem.b_major == Major::kMn &&
                       problem.m <= kBlockMs[0]
                   ? cover_n / kMnMajorUnit * kMnMajorUnit
                   : cover_n),
      may_split(problem.num_sms == 0 && !problem.batch_invariant && op_kind(problem.op).knobs.has(Knob::kSplitK)),
      is_dense(!is_grouped(problem.op)),
      is_limited(problem.num_sms > 0) {}

bool Pruning::is_alone(const Config& config, int fitting) const {
    if (config.split_k > 1) return false;
    const int64_t m_tiles = ceil_div(m, int64_t(config.block_m)), n_tiles = ceil_div(n, int64_t(config.block_n));
    return is_limited || dense_blocks_per_sm(m_tiles, n_tiles, sms, fitting) == 1;
}

bool Pruning::keeps_wide(const Config& config) const {
    if (!takes_wide || config.split_k > 1 || config.block_n != kWideSwappedRows || n <= config.block_n / 2)
        return false;
    // Sizes of masked groups are about m, no more is known. Beyond some hundred rows the estimate would choose by how
    // well a tile fits just that number: the heuristic's regret on 70 products is 8.2 % with this limit, 8.9 % without
    // it, and 8.6 % without such tiles (H200).
    if (wide_m > 0) return config.block_m <= wide_m && m >= kMostTokens / 2 && m <= kMostWideRows;
    const auto pad = [&](int64_t rows) { return (m + rows - 1) / rows * rows; };
    return m > kMostTokens && pad(config.block_m) < pad(2 * kMostTokens);
}

bool Pruning::keeps_split(const Config& config) const {
    if (!may_split || config.split_k > k_steps / 2) return false;
    return num_tiles(config) * config.split_k <= double(kMaxSplitWaves * sms);
}

bool is_worth_trying(const Problem& problem, const Config& config, const Device& device) {
    if (!is_legal(problem, config, device)) return false;
    if (is_logits(problem)) return keeps_tokens(problem, config);
    const Config tile = without_loop_knobs(config);
    if (!Pruning(problem, device).keeps(config, blocks_per_sm(problem, tile))) return false;
    Config deeper = tile;
    const auto blocks = [&](const Config& c) { return kSmSmemBytes / (smem_bytes(problem, c) + kSmemReservedBytes); };
    if (++deeper.num_stages > kDeepestRing || smem_bytes(problem, deeper) > device.smem_bytes) return true;
    if (has_two_d_tiles(problem, tile) && !has_two_d_tiles(problem, deeper)) return true;
    return blocks(deeper) < blocks(tile);
}

std::vector<Config> get_candidates(const Problem& problem, const Device& device) {
    std::vector<Config> candidates;
    candidates.reserve(kMaxCandidates);
    if (const auto twin = find_masked_twin(problem)) {
        for (const Config& config : get_candidates(*twin, device))
            if (is_legal(problem, config, device)) candidates.push_back(config);
        if (!candidates.empty()) return candidates;
    }
    const Space space(problem, device);
    for_each_candidate(problem, device, space, [&](const SpaceTile& tile) { candidates.push_back(tile.config); });
    return candidates;
}

}  // namespace deep_gemm
