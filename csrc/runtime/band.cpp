#include "runtime/band.hpp"

#include <algorithm>
#include <limits>

#include "runtime/operand_checks.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kMaxBand = 32;
// CTAs are started GPC by GPC, 16 to each, after eight that go to the odd SMs of several GPCs (seen by %smid on three
// H100, on other GPUs not looked at). CTAs of a GPC that read the same rows at about the same time read them faster:
// (2048, 576, 3584) in BF16 with tiles of 128x72 takes 13.3 us with 2 tiles along m and 8 along n in each 16, and 20.2
// with 8 and 2. Over 153 kernels of up to three waves the band chosen so loses 0.6 % to the best of 1 to 32, bands for
// the wave alone lose 2.6 %, and up to 55 %.
constexpr int64_t kFirstCtas = 8, kGpcCtas = 16;
constexpr int64_t kMaxGpcWaves = 3, kMaxGpcBand = 8;
// A wave's rows beside those of its GPCs; 2 to 6 choose the same bands.
constexpr double kWaveWeight = 4;
// Bands by bytes are powers of two: 16 CTAs are then a block of whole columns.
constexpr int64_t kMaxByteBand = 64;
// Rows stay in the L2 while no more than this passes through it; then ever more are lost. 25 to 40 MB choose alike.
constexpr double kKeptBytes = 30e6, kKeptBelow = 0.7, kLostAbove = 1.3;
// Waves whose rows are counted, spread over the matrix: two choose worse bands, eight none better.
constexpr int64_t kCountedWaves = 3;
// What a byte that a GPC reads counts beside one that is read from memory again, in dense products on a GPU of such
// memory (an H200 has 4800): 0.05 to 0.25 choose alike. With 1, by which an H100 (3350) chose the numbers above, 116
// kernels of an H200 lose 1.1 % to the best of 14 bands and at most 8, with this 0.6 and at most 4. For groups it gains
// nothing.
constexpr double kFastMemoryGbps = 4400, kFastGpcWeight = 0.2;

// The band with the fewest rows of A and B in a wave.
int64_t choose_wave_band(const Config& config, const WalkedTiles& tiles) {
    int64_t best_band = 1, best_rows = INT64_MAX;
    for (int64_t band = 1; band <= std::min(kMaxBand, tiles.m); ++band) {
        const int64_t columns = ceil_div(tiles.clusters, band) * config.cluster_n * config.block_n;
        const int64_t rows = band * config.cluster_m * config.block_m + columns;
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

// Mean number of groups, and so of matrices of B, that a run of `height` tiles along m meets. Groups begin at whole
// units of tiles; so does a run of whole units.
double mean_matrices(const WalkedTiles& tiles, int64_t height) {
    if (tiles.group_tiles == 0) return 1;
    const double unit = double(tiles.group_unit),
                 borders = height % tiles.group_unit == 0 ? double(height) / unit - 1 : double(height - 1) / unit;
    return 1 + borders * unit / double(tiles.group_tiles);
}

// Mean number of groups that have rows.
double mean_groups(const WalkedTiles& tiles) {
    return tiles.group_tiles == 0 ? 1 : std::max(1.0, double(tiles.m) / double(tiles.group_tiles));
}

// Rows of A and B that tiles begin .. end - 1 touch, each counted once in every band that the run meets.
double count_rows(const Config& config, const WalkedTiles& tiles, int64_t band, int64_t begin, int64_t end) {
    int64_t m_tiles = 0;
    double n_tiles = 0;
    while (begin < end) {
        const int64_t first_m = begin / (band * tiles.n) * band, height = std::min(band, tiles.m - first_m),
                      start = first_m * tiles.n, stop = std::min(end, start + height * tiles.n);
        m_tiles += std::min(stop - begin, height);
        const int64_t columns = (stop - 1 - start) / height - (begin - start) / height + 1;
        n_tiles += double(columns) * mean_matrices(tiles, std::min(height, stop - begin));
        begin = stop;
    }
    const double all_columns = double(tiles.n) * mean_groups(tiles);
    return double(m_tiles * config.cluster_m * config.block_m) +
           std::min(n_tiles, all_columns) * double(config.cluster_n * config.block_n);
}

double count_gpc_rows(const Config& config, const WalkedTiles& tiles, int64_t band, int64_t begin, int64_t end) {
    const int64_t cluster_size = config.cluster_m * config.cluster_n,
                  clusters = std::max<int64_t>(1, kGpcCtas / cluster_size);
    double rows = 0;
    for (int64_t stop = begin + kFirstCtas / cluster_size; begin < end; begin = stop, stop += clusters)
        rows += count_rows(config, tiles, band, begin, std::min(stop, end));
    return rows;
}

int64_t choose_gpc_band(const Config& config, const WalkedTiles& tiles) {
    const int64_t all = tiles.m * tiles.n;
    int64_t best_band = 1;
    double best_rows = std::numeric_limits<double>::infinity();
    for (int64_t band = 1; band <= std::min(kMaxGpcBand, tiles.m); ++band) {
        double rows = 0;
        for (int64_t begin = 0; begin < all; begin += tiles.clusters) {
            const int64_t end = std::min(begin + tiles.clusters, all);
            rows += count_gpc_rows(config, tiles, band, begin, end) +
                    kWaveWeight * count_rows(config, tiles, band, begin, end);
        }
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

// Bytes of A and B that the GPCs read for one matrix, by some of its waves.
double count_gpc_bytes(const Config& config, const WalkedTiles& tiles, int64_t band) {
    const int64_t all = tiles.m * tiles.n, waves = ceil_div(all, tiles.clusters),
                  counted = std::min(waves, kCountedWaves);
    double rows = 0;
    for (int64_t i = 0; i < counted; ++i) {
        const int64_t begin = i * waves / counted * tiles.clusters;
        rows += count_gpc_rows(config, tiles, band, begin, std::min(begin + tiles.clusters, all));
    }
    return rows * double(tiles.k_bytes) * double(waves) / double(counted);
}

// The share of rows that the L2 has lost when `bytes` have passed through it.
double lost_share(double bytes) {
    return std::clamp((bytes / kKeptBytes - kKeptBelow) / (kLostAbove - kKeptBelow), 0.0, 1.0);
}

// Bytes of A and B that are read from memory once more: B in each band that meets its group but the first, the rows of
// a band in each wave of it.
double count_bytes_again(const Config& config, const WalkedTiles& tiles, int64_t band) {
    const double m_rows = config.cluster_m * config.block_m, n_rows = config.cluster_n * config.block_n,
                 k_bytes = double(tiles.k_bytes), tile_d_bytes = m_rows * n_rows * double(tiles.d_bytes),
                 bands = double(ceil_div(tiles.m, band)), matrices = mean_matrices(tiles, band),
                 wave_columns = std::max(1.0, double(tiles.clusters) / double(band)),
                 waves = std::max(1.0, double(tiles.n) / wave_columns);
    const double b = double(tiles.n) * n_rows * k_bytes, a_of_band = double(band) * m_rows * k_bytes,
                 b_again = std::max(0.0, bands * matrices - mean_groups(tiles)) * b;
    const double passed_in_band = matrices * b + a_of_band + double(band * tiles.n) * tile_d_bytes,
                 passed_in_wave =
                     a_of_band + matrices * wave_columns * n_rows * k_bytes + double(tiles.clusters) * tile_d_bytes;
    return b_again * lost_share(passed_in_band) + (waves - 1) * bands * a_of_band * lost_share(passed_in_wave);
}

double gpc_weight(const WalkedTiles& tiles) {
    return tiles.is_dense && tiles.memory_gbps > kFastMemoryGbps ? kFastGpcWeight : 1;
}

// Over 212 kernels of more than three waves on an H100, bands for the wave alone lose 3.4 % to the best (at most 23),
// these 1.2 (12); over 64 batched ones 4.8 and 1.3 %. Where groups lie one after the other, 120 kernels of grids of any
// length lose 3.4 % by the bands of waves (27), by these 1.4 (17).
int64_t choose_byte_band(const Config& config, const WalkedTiles& tiles) {
    int64_t best_band = 1;
    double best_bytes = std::numeric_limits<double>::infinity();
    for (int64_t band = 1;; band = std::min(2 * band, tiles.m)) {
        const double bytes =
            gpc_weight(tiles) * count_gpc_bytes(config, tiles, band) + count_bytes_again(config, tiles, band);
        if (bytes < best_bytes) best_bytes = bytes, best_band = band;
        if (band == tiles.m || band == kMaxByteBand) return best_band;
    }
}

}  // namespace

int64_t choose_band(const Config& config, const WalkedTiles& tiles) {
    const bool has_choice = tiles.m > 1 && tiles.n > 1;  // else all bands are the same order
    if (!has_choice || config.split_k > 1 || tiles.may_have_less) return choose_wave_band(config, tiles);
    if (tiles.group_tiles > 0 || tiles.all > kMaxGpcWaves * tiles.clusters) return choose_byte_band(config, tiles);
    const bool is_single = config.cluster_m * config.cluster_n == 1;
    return tiles.is_dense && is_single ? choose_gpc_band(config, tiles) : choose_wave_band(config, tiles);
}

}  // namespace deep_gemm
