"""Memory layouts of the suite's operands, with NaN between and behind the elements, so that a stray read shows."""

import torch

#: Every byte 0xFF is NaN in FP8 (E4M3FN), BF16 and FP32.
NAN_BYTE = 0xFF
PITCH_BYTES = 16
#: Integer dtype by element size: torch copies, compares and concatenates FP8 through it.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Scale layouts that TMA loads, and such that it cannot.
MN_MAJOR_LAYOUTS = ("mn_major", "mn_major_wide")
ANY_LAYOUTS = ("row_major", "odd_pitch", "shifted")
SCALE_LAYOUTS = MN_MAJOR_LAYOUTS + ANY_LAYOUTS


def align(value: int, unit: int) -> int:
    """Round `value` up to a multiple of `unit`."""
    return -(-value // unit) * unit


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers of the element's size."""
    return tensor.view(INTEGERS[tensor.element_size()])


def repeat_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the first row once more behind the last one."""
    whole = as_integers(tensor)
    return torch.cat([whole, whole[:1]]).view(tensor.dtype)


class PoisonedOutput:
    """An output `d` in the middle of a larger `buffer` of integers."""

    buffer: torch.Tensor
    d: torch.Tensor

    def poison(self, c: torch.Tensor | None = None) -> None:
        """Fill D and its red zones with NaN again; a `c` becomes D's content."""
        self.buffer.fill_(-1)
        if c is not None:
            self.d.copy_(c)


def make_nan(count: int, dtype: torch.dtype, device: object) -> torch.Tensor:
    """Return `count` elements of NaN."""
    return torch.full((count * dtype.itemsize,), NAN_BYTE, dtype=torch.uint8, device=device).view(dtype)


def make_rows(values: torch.Tensor, pitch: int = 0) -> torch.Tensor:
    """Copy [rows, k] into rows of `pitch` elements (default: the next multiple of 16 bytes) with NaN in between."""
    rows, k = values.shape
    pitch = pitch or align(max(k, 1), PITCH_BYTES // values.element_size())
    buffer = make_nan(rows * pitch, values.dtype, values.device).view(rows, pitch)[:, :k]
    as_integers(buffer).copy_(as_integers(values))
    return buffer


def make_columns(values: torch.Tensor, pitch: int = 0) -> torch.Tensor:
    """Copy [rows, k] into MN-major memory: the columns are contiguous and `pitch` elements apart, NaN in between."""
    return make_rows(values.T, pitch).T


def make_operand(values: torch.Tensor, major: str, extra: int = 0) -> torch.Tensor:
    """Copy [rows, k] into K-major (`k`) or MN-major (`mn`) memory whose pitch is `extra` times 16 bytes wider than need
    be.
    """
    width = values.shape[1] if major == "k" else values.shape[0]
    unit = PITCH_BYTES // values.element_size()
    pitch = align(max(width, 1), unit) + extra * unit
    return make_rows(values, pitch) if major == "k" else make_columns(values, pitch)


def make_shifted(values: torch.Tensor, offset: int, pitch: int) -> torch.Tensor:
    """Copy [rows, k] into rows of `pitch` elements that start `offset` elements into 16-byte aligned memory."""
    wide = torch.nn.functional.pad(as_integers(values), (offset, 0)).view(values.dtype)
    return make_rows(wide, pitch)[:, offset:]


def make_scales_mn_major(scale: torch.Tensor, pitch: int = 0) -> torch.Tensor:
    """Copy scales [mn, kb] into MN-major memory of `pitch` elements (default: mn rounded up to 4), NaN in between."""
    return make_columns(scale, pitch)


def make_scales_pitched(scale: torch.Tensor, pitch: int) -> torch.Tensor:
    """Copy scales [mn, kb] into row-major memory of `pitch` elements, NaN in between."""
    return make_rows(scale, pitch)


def is_mn_major(scale: torch.Tensor) -> bool:
    """Return whether TMA can load the scales [mn, kb]: unit stride along mn, a base and a pitch along kb of whole 16
    bytes.
    """
    (rows, blocks), (row_stride, block_stride) = scale.shape, scale.stride()
    is_pitched = blocks == 1 or block_stride * scale.element_size() % PITCH_BYTES == 0
    return (rows == 1 or row_stride == 1) and is_pitched and scale.data_ptr() % PITCH_BYTES == 0


def make_scale_layout(scale: torch.Tensor, layout: str) -> torch.Tensor:
    """Return scales [mn, kb] or [mn] in the memory layout of that name; the values are the same.

    `shifted` starts 4 bytes off a 16-byte boundary: the one layout that TMA can load for no size.
    """
    if scale.dim() == 1:
        return scale.clone() if layout in MN_MAJOR_LAYOUTS else make_scales_pitched(scale[:, None], 3)[:, 0]
    rows, blocks = scale.shape
    if layout in MN_MAJOR_LAYOUTS:
        return make_scales_mn_major(scale, align(max(rows, 1), 4) + (8 if layout == "mn_major_wide" else 0))
    if layout == "row_major":
        return scale.clone(memory_format=torch.contiguous_format)
    return make_shifted(scale, 1, blocks + 1) if layout == "shifted" else make_scales_pitched(scale, blocks + 3)


def make_scale_of_class(scale: torch.Tensor, scale_layout: str, index: int) -> torch.Tensor:
    """Return the scales in one of the layouts that the kernels of `scale_layout` ("mn_major" or "any") are launched
    with.
    """
    if scale_layout == "mn_major":
        return make_scale_layout(scale, MN_MAJOR_LAYOUTS[index % len(MN_MAJOR_LAYOUTS)])
    found = make_scale_layout(scale, ANY_LAYOUTS[index % len(ANY_LAYOUTS)])
    return make_scale_layout(scale, "shifted") if scale.dim() == 2 and is_mn_major(found) else found


def copy_to_gpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Copy a tensor with its strides: the whole storage travels, so that what lies around it stays as it is and no
    kernel runs.
    """
    if tensor is None:
        return None
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.as_strided((size,), (1,), 0)
    return flat.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
