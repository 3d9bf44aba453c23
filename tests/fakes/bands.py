"""The band of a walk by csrc/runtime/band.cpp's rules: rows counted tile by tile, groups that tiles meet and bytes that
are read again by the same formulas.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Walk:
    """A walk of `clusters` over the m * n cluster tiles of one matrix; bytes: of a row of K, of an element of D.

    group_tiles: of groups that lie one after the other along m the tiles of one on average; of others 0. group_unit:
    such groups begin at multiples of so many tiles. memory_gbps: of the GPU, 0 where it is not known.
    """

    config: object
    m: int
    n: int
    clusters: int
    k_bytes: int = 0
    d_bytes: int = 2
    group_tiles: int = 0
    group_unit: int = 1
    memory_gbps: float = 0.0

    def choose(self, all_tiles: int, *, is_dense: bool = True, may_have_less: bool = False) -> int:
        """Return the band of a launch of so many cluster tiles; `may_have_less`: m is room for rows."""
        if self.config.split_k > 1 or min(self.m, self.n) == 1 or may_have_less:
            return self.best_for_a_wave()
        if self.group_tiles or all_tiles > 3 * self.clusters:
            return self.best_by_bytes(0.2 if is_dense and self.memory_gbps > 4400 else 1.0)
        is_single = self.config.cluster_m * self.config.cluster_n == 1
        return self.best_for_gpcs() if is_dense and is_single else self.best_for_a_wave()

    @property
    def groups(self) -> float:
        """Mean number of groups that have rows."""
        return max(1.0, self.m / self.group_tiles) if self.group_tiles else 1.0

    def get_mean_matrices(self, height: int) -> float:
        """Return the mean number of groups that so many tiles along m meet: the first one's, and one more for each of
        their borders between units that is a border between groups.
        """
        if not self.group_tiles:
            return 1.0
        borders = height / self.group_unit - 1 if height % self.group_unit == 0 else (height - 1) / self.group_unit
        return 1 + borders * self.group_unit / self.group_tiles

    @property
    def rows(self) -> tuple[int, int]:
        """Rows of A and of B that a cluster tile needs."""
        config = self.config
        return config.cluster_m * config.block_m, config.cluster_n * config.block_n

    def walk(self, band: int) -> list[tuple[int, int]]:
        """Return the tiles in their order."""
        return [
            (m_tile, n_tile)
            for first in range(0, self.m, band)
            for n_tile in range(self.n)
            for m_tile in range(first, min(first + band, self.m))
        ]

    def count(self, run: list[tuple[int, int]], band: int) -> float:
        """Return the rows that tiles in a row need. A column of tiles counts once for each band and each group that it
        meets there, up to all of them.
        """
        columns = 0.0
        for first in {tile[0] // band for tile in run}:
            part = [tile for tile in run if tile[0] // band == first]
            height = min(band, self.m - first * band, len(part))
            columns += len({tile[1] for tile in part}) * self.get_mean_matrices(height)
        return len({tile[0] for tile in run}) * self.rows[0] + min(columns, self.n * self.groups) * self.rows[1]

    def cut(self, wave: list) -> list[list]:
        """Return the parts of a wave that start together."""
        size = self.config.cluster_m * self.config.cluster_n
        return [
            wave[: 8 // size],
            *(wave[begin : begin + 16 // size] for begin in range(8 // size, len(wave), 16 // size)),
        ]

    def waves(self, band: int) -> list[list]:
        """Return the tiles of each wave."""
        tiles = self.walk(band)
        return [tiles[begin : begin + self.clusters] for begin in range(0, len(tiles), self.clusters)]

    def best_for_gpcs(self) -> int:
        """Return the band with the fewest rows of GPCs and waves."""

        def count(band: int) -> float:
            return sum(
                4 * self.count(wave, band) + sum(self.count(run, band) for run in self.cut(wave))
                for wave in self.waves(band)
            )

        return min(range(1, min(8, self.m) + 1), key=count)

    def best_for_a_wave(self) -> int:
        """Return the band with the fewest rows of a wave."""

        def count(band: int) -> int:
            return band * self.rows[0] + -(-self.clusters // band) * self.rows[1]

        return min(range(1, min(32, self.m) + 1), key=count)

    def best_by_bytes(self, weight: float) -> int:
        """Return the band that moves the fewest bytes; `weight`: of those that GPCs read."""
        bands = sorted({*(band for band in (1, 2, 4, 8, 16, 32, 64) if band < self.m), min(self.m, 64)})
        return min(bands, key=lambda band: weight * self.count_gpc_bytes(band) + self.count_bytes_again(band))

    def count_gpc_bytes(self, band: int) -> float:
        """Return what the GPCs read, by three waves of the matrix."""
        waves = self.waves(band)
        counted = [waves[index * len(waves) // min(3, len(waves))] for index in range(min(3, len(waves)))]
        rows = sum(self.count(run, band) for wave in counted for run in self.cut(wave) if run)
        return rows * self.k_bytes * len(waves) / len(counted)

    def count_bytes_again(self, band: int) -> float:
        """Return what is read from memory once more."""
        (m_rows, n_rows), columns = self.rows, max(1.0, self.clusters / band)
        bands, waves, matrices = -(-self.m // band), max(1.0, self.n / columns), self.get_mean_matrices(band)
        b, a = self.n * n_rows * self.k_bytes, band * m_rows * self.k_bytes
        in_band = matrices * b + a + band * self.n * m_rows * n_rows * self.d_bytes
        in_wave = a + matrices * columns * n_rows * self.k_bytes + self.clusters * m_rows * n_rows * self.d_bytes
        b_again = max(0.0, bands * matrices - self.groups) * b
        return b_again * lost(in_band) + (waves - 1) * bands * a * lost(in_wave)


def lost(passed: float) -> float:
    """Return the share of rows that the L2 has lost once so many bytes passed through it."""
    return min(1.0, max(0.0, (passed / 30e6 - 0.7) / 0.6))
