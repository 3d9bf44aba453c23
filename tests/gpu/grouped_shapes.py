"""Sizes of the grouped suite's cases: how the rows or the K of a product are divided among its groups."""

from typing import NamedTuple

from .memory import align

#: K_g is a multiple of it, and each FP8 scale covers that much of K.
K_UNIT = 128


class Block(NamedTuple):
    """Rows of one group that lie side by side: `first` counts over all rows of A, and so over those of D."""

    group: int
    first: int
    rows: int


class Contiguous(NamedTuple):
    """D [m, n]: segments of (group, rows of padding before, rows), each from the next multiple of the alignment on.

    is_cut: m ends with the last row of a group, so that it is a multiple of no tile.
    """

    n: int
    k: int
    num_groups: int
    alignment: int
    segments: tuple[tuple[int, int, int], ...]
    is_cut: bool = True

    def blocks(self) -> list[Block]:
        """Return where the rows of the groups lie."""
        return self._place()[0]

    @property
    def m(self) -> int:
        """Rows of A and D with their padding."""
        end = self._place()[1]
        return end if self.is_cut else align(end, self.alignment)

    def _place(self) -> tuple[list[Block], int]:
        end, blocks = 0, []
        for group, before, rows in self.segments:
            first = align(end, self.alignment) + before
            blocks.append(Block(group, first, rows))
            end = first + rows
        return blocks, end


class Masked(NamedTuple):
    """D [num_groups, max_m, n]; sizes are what the device is told: above max_m counts as max_m, below 0 as 0."""

    n: int
    k: int
    max_m: int
    sizes: tuple[int, ...]

    def blocks(self) -> list[Block]:
        """Return where the rows of the groups lie."""
        return [
            Block(group, group * self.max_m, min(max(size, 0), self.max_m)) for group, size in enumerate(self.sizes)
        ]

    @property
    def m(self) -> int:
        """Rows of A and D of all groups together."""
        return self.max_m * len(self.sizes)

    @property
    def num_groups(self) -> int:
        """How many groups there are, empty ones too."""
        return len(self.sizes)


class KGroups(NamedTuple):
    """D [num_groups, m, n], each group with its own K of `ks`."""

    m: int
    n: int
    ks: tuple[int, ...]

    @property
    def k(self) -> int:
        """K of all groups together."""
        return sum(self.ks)

    @property
    def num_groups(self) -> int:
        """How many groups there are, empty ones too."""
        return len(self.ks)


#: Columns beyond two tiles.
TAILS = (2, 3, 4, 5, 6, 7)
#: Alignments of the shapes that all configs run: the library's default, and one that every tile divides.
COMMON_ALIGNMENTS = (128, 1536)


def get_tile(config) -> tuple[int, int]:
    """Return rows and columns of D that a cluster computes together."""
    return config.block_m * config.cluster_m, config.block_n * config.cluster_n


def derive_columns(config, index: int) -> list[int]:
    """Return the n at the edges of a config's tile."""
    width = get_tile(config)[1]
    return [1, width - 8, width, width + 8, 2 * width + TAILS[index % len(TAILS)]]


def derive_depths(config) -> list[int]:
    """Return the k at the edges of a config's ring: short, with a tail, one stage less than the ring, just filled,
    wrapped, wrapped twice.
    """
    step, stages = config.block_k, config.num_stages
    return [
        128,
        128 + 16,
        *(step * count for count in (stages - 1, stages, stages + 1)),
        step * (2 * stages + 1) + 41,
        step // 8,
    ]


def derive_contiguous(config, index: int) -> list[Contiguous]:
    """Return contiguous shapes around a config's tile, n and k in turn from `index` on.

    Groups of a CTA's tile and one row more or less, so that the tiles of a pair are of one group or of two, one of
    nearly everything beside groups of a row and of none, equal ones, a single row; padding that fills whole tiles, that
    comes before the rows of a tile (also before rows that fill it to its end), and an m that ends within one.
    """
    tile = config.block_m
    fitting = [alignment for alignment in (tile, 2 * tile, 128) if alignment % tile == 0]
    parts = [
        ((0, 0, tile - 1), (1, 0, tile), (2, 0, tile + 1)),
        ((0, 0, 1), (2, 0, 3 * tile + 5), (3, 0, 1)),
        ((2, 0, 2 * tile), (0, 0, 2 * tile), (1, 0, 2 * tile)),
        (
            (0, tile // 2, max(tile // 4, 1)),
            (3, tile, 0),
            (1, 1, tile - 1),
            (3, 2 * tile - 1, 1),
            (2, tile // 2, tile - tile // 2),
            (0, 0, 3),
        ),
        ((1, 0, 1),),
    ]
    depths, columns = derive_depths(config), derive_columns(config, index)
    return [
        Contiguous(columns[(turn + turn // 5 + index) % len(columns)], depths[(turn + index) % len(depths)], 4,
                   fitting[(turn + index) % len(fitting)], parts[turn % len(parts)], turn % 2 == 0)
        for turn in range(2 * len(parts))
    ]  # fmt: skip


def derive_masked(config, index: int) -> list[Masked]:
    """Return masked shapes around a config's tile: max_m of no whole tiles, groups full, empty, of one row and of a
    tile and one row more or less.
    """
    tile = get_tile(config)[0]
    parts = [
        (2 * tile + 3, (tile - 1, tile, tile + 1, 0)),
        (tile, (tile, 0, 1, tile)),
        (2 * tile - 1, (2 * tile - 1, 1, 0, tile // 2 + 1)),
        (5 * tile + 1, (1, 5 * tile + 1, 0, 0, 2)),
        (1, (1, 0, 1)),
    ]
    depths, columns = derive_depths(config), derive_columns(config, index)
    return [
        Masked(
            columns[(turn + turn // 5 + index) % len(columns)],
            depths[(turn + index) % len(depths)],
            *parts[turn % len(parts)],
        )
        for turn in range(2 * len(parts))
    ]


def derive_k_groups(config, index: int) -> list[KGroups]:
    """Return groups of K around a config's tile and ring: empty, of one step, not filling the ring, filling it,
    wrapping it, one of nearly all.
    """
    (height, width), steps = get_tile(config), config.num_stages
    ring = align(config.block_k * steps, K_UNIT)
    parts = [
        (ring - K_UNIT, 0, ring, ring + K_UNIT),
        (0, K_UNIT, 0),
        (K_UNIT, 2 * ring + K_UNIT, K_UNIT),
        (3 * K_UNIT,),
        (K_UNIT, 0, 3 * ring, 0, K_UNIT),
    ]
    sizes = [
        (1, width),
        (height - 1, width - 8),
        (height, 1),
        (height + 1, width + 8),
        (2 * height + 3, 2 * width + TAILS[index % len(TAILS)]),
    ]
    return [
        KGroups(*sizes[(turn + turn // 5 + index) % len(sizes)], parts[turn % len(parts)])
        for turn in range(2 * len(parts))
    ]


def choose_common_alignment(config) -> int:
    """Return the alignment of the shapes on which a config is compared with the others."""
    return next(alignment for alignment in COMMON_ALIGNMENTS if alignment % config.block_m == 0)


def list_common_contiguous(alignment: int) -> list[Contiguous]:
    """Return shapes that all configs of an alignment meet on.

    Unequal groups, nearly all in one, many tiny ones, many tiles, nothing but padding, and tiles of padding before
    those with K steps.
    """
    many = 256 if alignment <= K_UNIT else 24
    ragged = tuple(enumerate((100, 128, 37, 256, 0, 1, 129, 64)))
    return [
        Contiguous(
            328, 1168, 9, alignment, (*((group, 0, rows) for group, rows in ragged), (0, alignment, 0), (8, 5, 9))
        ),
        Contiguous(136, 2048, 3, alignment, ((0, 0, 1), (1, 0, 900), (2, 0, 3))),
        Contiguous(24, 144, many, alignment, tuple((group, 0, 1) for group in reversed(range(many)))),
        Contiguous(1032, 400, 1, alignment, ((0, 0, 513),), False),
        Contiguous(72, 128, 2, alignment, ((1, alignment, 0), (1, alignment - 1, 0)), False),
        Contiguous(40, 656, 2, alignment, ((0, 2 * alignment, 0), (1, 0, 2 * alignment), (0, 0, 3))),
    ]


def list_common_masked() -> list[Masked]:
    """Return shapes that all configs meet on: sizes out of range, nearly all in one, many tiny ones, few among many
    empty, decode, one group.
    """
    sparse = tuple({3: 17, 64: 40, 99: 1}.get(group, 0) for group in range(100))
    return [
        Masked(328, 1168, 200, (100, 200, 37, 1 << 30, 0, 1, -5, 64)),
        Masked(136, 2048, 1000, (1, 1000, 3)),
        Masked(24, 144, 24, tuple(group * 7 % 25 for group in range(256))),
        Masked(40, 272, 40, sparse),
        Masked(264, 912, 300, tuple(12 + group * 5 % 17 for group in range(33))),
        Masked(1032, 400, 513, (513,)),
    ]


def list_common_k_groups() -> list[KGroups]:
    """Return shapes that all configs meet on.

    Unequal groups, many tiny ones (more than a block has slots for tensor maps), one group, and empty ones before those
    with K steps.
    """
    return [
        KGroups(300, 264, (1024, 0, 128, 2048)),
        KGroups(24, 40, tuple(K_UNIT * (group % 3) for group in range(256))),
        KGroups(136, 72, (K_UNIT,) * 65),
        KGroups(513, 520, (1024,)),
        KGroups(77, 136, (0, 384, 128, 0, 0, 640, 256, 0)),
        KGroups(40, 24, (0,) * 6 + (1152,) * 6 + (0, K_UNIT) * 4),
    ]
