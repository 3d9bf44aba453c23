"""Scales as UE8M0: powers of two, of which only the eight bits of the FP32 exponent are kept, four in an int32.

Kernels of SM100 take them; those of SM90 take FP32 scales. The lowest byte of a word is the first of its four.
"""

import torch

from deep_gemm.errors import ArgumentError, DtypeError, ShapeError

_MANTISSA_BITS = 23
_MANTISSA = (1 << _MANTISSA_BITS) - 1
#: Exponents in a word.
PER_WORD = 4


def ceil_to_ue8m0(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest powers of two that are at least |x|, as float32, within 2^-126..2^127."""
    bits = x.abs().float().view(torch.int32)
    exponents = (bits >> _MANTISSA_BITS) + ((bits & _MANTISSA) != 0)
    return (exponents.clamp(1, 254) << _MANTISSA_BITS).view(torch.float32)


def pack_ue8m0_to_int(x: torch.Tensor) -> torch.Tensor:
    """Pack float32 powers of two [..., k], k a multiple of 4, into int32 [..., k / 4].

    Reads the values to check them, so it waits for the GPU.

    Raises: DtypeError; ShapeError for another k; ArgumentError for a number that is no power of two.
    """
    check_scales(x)
    if x.dim() == 0 or x.shape[-1] % PER_WORD:
        raise ShapeError(f"x.shape = {list(x.shape)}: the last dim must be a multiple of 4; pad it.")
    if (x.view(torch.int32) & _MANTISSA).any():
        raise ArgumentError("x: holds numbers that are no powers of two; round them with ceil_to_ue8m0.")
    return exponents_of(x).contiguous().view(torch.int32)


def check_are_rounded(use_ue8m0: bool) -> None:
    """Raise ArgumentError where a cast is to pack scales that it does not round to powers of two."""
    if not use_ue8m0:
        raise ArgumentError("use_packed_ue8m0 = True: packs powers of two; pass use_ue8m0=True as well.")


def unpack_ue8m0_from_int(packed: torch.Tensor) -> torch.Tensor:
    """Return the float32 powers of two [..., 4 k] of packed ones, int32 [..., k]."""
    return (packed.contiguous().view(torch.uint8).int() << _MANTISSA_BITS).view(torch.float32)


def exponents_of(x: torch.Tensor) -> torch.Tensor:
    """Return the eight bits of the exponents of float32 numbers, as uint8."""
    return (x.view(torch.int32) >> _MANTISSA_BITS).to(torch.uint8)


def check_scales(sf: torch.Tensor) -> None:
    """Raise DtypeError unless the scales can be packed."""
    if sf.dtype != torch.float32:
        raise DtypeError(f"sf.dtype = {sf.dtype}: UE8M0 is packed from torch.float32; convert it with .float().")
