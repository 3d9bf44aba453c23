"""Memory of grouped operands: NaN between the rows of matrices and between groups, and a guarded D of any rank."""

import torch

from .memory import (
    INTEGERS,
    MN_MAJOR_LAYOUTS,
    PITCH_BYTES,
    PoisonedOutput,
    align,
    as_integers,
    make_nan,
    make_scale_layout,
)

#: Rows of red zone before, between and behind the matrices of D, and of NaN between those of an operand.
GUARD_ROWS = 16


def make_lines(values: torch.Tensor, pitch: int, gap: int = 0) -> torch.Tensor:
    """Copy [groups, rows, k] into rows of `pitch` elements, `gap` rows between groups, all else NaN."""
    groups, rows, k = values.shape
    buffer = make_nan(groups * (rows + gap) * pitch, values.dtype, values.device).view(groups, rows + gap, pitch)[
        :, :rows, :k
    ]
    as_integers(buffer).copy_(as_integers(values))
    return buffer


def make_groups(values: torch.Tensor, major: str = "k", extra: int = 0, gap: int = 0) -> torch.Tensor:
    """Copy [groups, rows, k] into K-major (`k`) or MN-major (`mn`) matrices whose pitch is `extra` times 16 bytes wider
    than need be.
    """
    lines = values if major == "k" else values.transpose(1, 2)
    unit = PITCH_BYTES // values.element_size()
    found = make_lines(lines, align(max(lines.shape[2], 1), unit) + extra * unit, gap)
    return found if major == "k" else found.transpose(1, 2)


def make_scale_layout_of_groups(scale: torch.Tensor, layout: str) -> torch.Tensor:
    """Return scales [mn, kb] or [groups, mn, kb] in the memory layout of that name (memory.SCALE_LAYOUTS); the values
    are the same.
    """
    if scale.dim() == 2:
        return make_scale_layout(scale, layout)
    if layout in MN_MAJOR_LAYOUTS:
        is_wide = layout == "mn_major_wide"
        return make_lines(
            scale.transpose(1, 2), align(max(scale.shape[1], 1), 4) + 8 * is_wide, int(is_wide)
        ).transpose(1, 2)
    if layout == "row_major":
        return scale.clone(memory_format=torch.contiguous_format)
    if layout == "shifted":  # 4 bytes off a 16-byte boundary
        return make_lines(torch.nn.functional.pad(scale, (1, 0)), scale.shape[2] + 1)[:, :, 1:]
    return make_lines(scale, scale.shape[2] + 3)


def is_mn_major_of_groups(scale: torch.Tensor) -> bool:
    """Return whether TMA can load the scales [..., mn, kb]: unit stride along mn, everything else at whole 16 bytes."""
    outer = [dim for dim in range(scale.dim()) if dim != scale.dim() - 2 and scale.shape[dim] > 1]
    is_pitched = all(scale.stride(dim) * scale.element_size() % PITCH_BYTES == 0 for dim in outer)
    return (scale.shape[-2] == 1 or scale.stride(-2) == 1) and is_pitched and scale.data_ptr() % PITCH_BYTES == 0


class GroupedOutput(PoisonedOutput):
    """D [n], [m, n] or [groups, m, n] in the middle of a larger buffer, groups `gap` rows apart; everything starts as
    NaN (all bits one).

    rows: the index that picks the rows of D that the op must write, None for all: the others of a group may hold
        anything.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        device: object,
        dtype: torch.dtype,
        rows: tuple | None = None,
        gap: int = GUARD_ROWS,
    ):
        *groups, m, n = shape if len(shape) > 1 else (1, *shape)
        unit = PITCH_BYTES // dtype.itemsize
        pitch = align(n, unit) + unit
        self._place = (shape, ((m + gap) * pitch, pitch, 1)[-len(shape) :], GUARD_ROWS * pitch)
        num_rows = (groups[0] if groups else 1) * (m + gap) + 2 * GUARD_ROWS
        self.buffer = torch.full((num_rows * pitch,), -1, dtype=INTEGERS[dtype.itemsize], device=device)
        self.all_bits = self.buffer.as_strided(*self._place)
        self.d = self.buffer.view(dtype).as_strided(*self._place)
        self.rows = rows

    @property
    def bits(self) -> torch.Tensor:
        """The rows of D that must be right, as integers."""
        return self.all_bits if self.rows is None else self.all_bits[self.rows]

    @property
    def values(self) -> torch.Tensor:
        """The rows of D that must be right."""
        return self.d if self.rows is None else self.d[self.rows]

    def num_dirty(self) -> torch.Tensor:
        """Count the written elements outside D (a tensor, so that nothing synchronises)."""
        return (self.buffer != -1).sum() - (self.all_bits != -1).sum()

    def make_watched(self) -> torch.Tensor:
        """Return a mask of the buffer: False where D may hold anything."""
        watched = torch.ones_like(self.buffer, dtype=torch.bool)
        if self.rows is not None:
            inside = watched.as_strided(*self._place)
            inside.fill_(False)
            inside[self.rows] = True
        return watched
