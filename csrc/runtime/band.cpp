#include "runtime/band.hpp"

#include <algorithm>

#include "runtime/operand_checks.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kMaxBand = 32;
// CTAs are started GPC by GPC, 16 to each, after eight that go to the odd SMs of several GPCs (seen by %smid on three
// H100, on other GPUs not looked at). CTAs of a GPC that read the same rows at about the same time read them faster:
// (2048, 576, 3584) in BF16 with tiles of 128x72 takes 13.3 us with 2 tiles along m and 8 along n in each 16, and 20.2
// with 8 and 2. Over 153 kernels the band chosen so loses 0.6 % to the best of 1 to 32, bands for the wave alone
// lose 2.6 %, and up to 55 %.
constexpr int64_t kFirstCtas = 8, kGpcCtas = 16;
// Beyond so many waves what a wave reads counts for more: few of the bands for a wave could be beaten there, by 3 %.
constexpr int64_t kMaxGpcWaves = 3, kMaxGpcBand = 8;
// A wave's rows beside those of its GPCs; 2 to 6 choose the same bands.
constexpr int64_t kWaveWeight = 4;

// Rows of A and B that a wave touches.
int64_t choose_wave_band(const Config& config, const WalkedTiles& tiles) {
    int64_t best_band = 1, best_rows = INT64_MAX;
    for (int64_t band = 1; band <= std::min(kMaxBand, tiles.m); ++band) {
        int64_t columns = ceil_div(tiles.clusters, band) * config.cluster_n * config.block_n;
        if (tiles.group_tiles > 0) columns = columns * (tiles.group_tiles + band - 1) / tiles.group_tiles;
        const int64_t rows = band * config.cluster_m * config.block_m + columns;
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

// Rows of A and B that tiles begin .. end - 1 touch, each counted once in every band that the run meets.
int64_t count_rows(const Config& config, const WalkedTiles& tiles, int64_t band, int64_t begin, int64_t end) {
    int64_t m_tiles = 0, n_tiles = 0;
    while (begin < end) {
        const int64_t first_m = begin / (band * tiles.n) * band, height = std::min(band, tiles.m - first_m),
                      start = first_m * tiles.n, stop = std::min(end, start + height * tiles.n);
        m_tiles += std::min(stop - begin, height);
        n_tiles += (stop - 1 - start) / height - (begin - start) / height + 1;
        begin = stop;
    }
    return m_tiles * config.block_m + std::min(n_tiles, tiles.n) * config.block_n;
}

int64_t count_gpc_rows(const Config& config, const WalkedTiles& tiles, int64_t band, int64_t begin, int64_t end) {
    int64_t rows = 0;
    for (int64_t stop = begin + kFirstCtas; begin < end; begin = stop, stop += kGpcCtas)
        rows += count_rows(config, tiles, band, begin, std::min(stop, end));
    return rows;
}

int64_t choose_gpc_band(const Config& config, const WalkedTiles& tiles) {
    const int64_t all = tiles.m * tiles.n;
    int64_t best_band = 1, best_rows = INT64_MAX;
    for (int64_t band = 1; band <= std::min(kMaxGpcBand, tiles.m); ++band) {
        int64_t rows = 0;
        for (int64_t begin = 0; begin < all; begin += tiles.clusters) {
            const int64_t end = std::min(begin + tiles.clusters, all);
            rows += count_gpc_rows(config, tiles, band, begin, end) +
                    kWaveWeight * count_rows(config, tiles, band, begin, end);
        }
        if (rows < best_rows) best_rows = rows, best_band = band;
    }
    return best_band;
}

}  // namespace

int64_t choose_band(const Config& config, const WalkedTiles& tiles) {
    const bool is_single = config.cluster_m * config.cluster_n * config.split_k == 1;
    const bool has_few_waves = tiles.m * tiles.n <= kMaxGpcWaves * tiles.clusters;
    const bool has_choice = tiles.m > 1 && tiles.n > 1;  // else all bands are the same order
    return tiles.is_whole && is_single && has_few_waves && has_choice ? choose_gpc_band(config, tiles)
                                                                      : choose_wave_band(config, tiles);
}

}  // namespace deep_gemm
