"""Scales as UE8M0: powers of two, of which only the eight bits of the FP32 exponent are kept, four in an int32.

Kernels of SM100 take them; those of SM90 take FP32 scales. The lowest byte of a word is the first of its four.
"""

import torch

from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.operands import check_numbers, check_tensor

_MANTISSA_BITS = 23
_MANTISSA = (1 << _MANTISSA_BITS) - 1
_INFINITY = 255 << _MANTISSA_BITS
#: Exponents in a word.
PER_WORD = 4


def ceil_to_ue8m0(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest powers of two that are at least |x|, as float32, within 2^-126..2^127.

    Infinities and NaN give 2^127, as in DeepGEMM: the exponent above it stands for NaN. The casts to FP8 with
    use_ue8m0=True round as this does, but give what holds such a number the scale 1, with which its finite numbers up
    to 448 are kept; with 2^127 they would become 0.

    Raises: ArgumentError, DtypeError for what has no such powers.
    """
    check_tensor("x", x)
    if x.is_complex() or x.dtype == torch.bool:
        raise DtypeError(f"x.dtype = {x.dtype}: must be real numbers; convert it with .float().")
    bits = x.float().abs().view(torch.int32)
    exponents = (bits >> _MANTISSA_BITS) + ((bits & _MANTISSA) != 0)
    return (exponents.clamp(1, 254) << _MANTISSA_BITS).view(torch.float32)


def pack_ue8m0_to_int(x: torch.Tensor) -> torch.Tensor:
    """Pack float32 powers of two [..., k], k a multiple of 4, into int32 [..., k / 4].

    Reads the values to check them, so it waits for the GPU.

    Raises: DtypeError; ShapeError for another k; ArgumentError for a number that is no power of two within
        2^-126..2^127: negative ones, 0 and infinity are none, and smaller ones have no exponent of their own.
    """
    check_numbers("x", x)
    check_scales(x)
    if x.dim() == 0 or x.shape[-1] % PER_WORD:
        raise ShapeError(f"x.shape = {list(x.shape)}: the last dim must be a multiple of 4; pad it.")
    bits = x.resolve_neg().view(torch.int32)
    is_power = (bits > 0) & (bits < _INFINITY) & (bits & _MANTISSA == 0)
    if not is_power.all():
        raise ArgumentError(
            f"x holds {x[~is_power][0].item()}: must be powers of two within 2^-126..2^127; round them with"
            " ceil_to_ue8m0."
        )
    return join_exponents(x)


def check_are_rounded(use_ue8m0: bool) -> None:
    """Raise ArgumentError where a cast is to pack scales that it does not round to powers of two."""
    if not use_ue8m0:
        raise ArgumentError("use_packed_ue8m0 = True: packs powers of two; pass use_ue8m0=True as well.")


def unpack_ue8m0_from_int(packed: torch.Tensor) -> torch.Tensor:
    """Return the float32 powers of two [..., 4 k] of packed ones, int32 [..., k].

    Raises: ArgumentError, DtypeError, ShapeError.
    """
    check_tensor("packed", packed)
    if packed.dtype != torch.int32:
        raise DtypeError(f"packed.dtype = {packed.dtype}: four exponents are a torch.int32; view it as that.")
    if packed.dim() == 0:
        raise ShapeError("packed.ndim = 0: must be [..., k]; reshape it.")
    return (packed.contiguous().view(torch.uint8).int() << _MANTISSA_BITS).view(torch.float32)


def exponents_of(x: torch.Tensor) -> torch.Tensor:
    """Return the eight bits of the exponents of float32 numbers, as uint8."""
    x = x.resolve_neg()  # lazily negated numbers, the imaginary part of a conjugated tensor, are no bits to view
    return (x.view(torch.int32) >> _MANTISSA_BITS).to(torch.uint8)


def join_exponents(x: torch.Tensor) -> torch.Tensor:
    """Return the exponents of float32 [..., 4 k], four in each int32 of [..., k]."""
    *leading, k = x.shape
    return exponents_of(x).contiguous().view(-1).view(torch.int32).view(*leading, k // PER_WORD)


def check_scales(sf: torch.Tensor) -> None:
    """Raise ArgumentError, DtypeError unless the scales can be packed."""
    check_tensor("sf", sf)
    if sf.dtype != torch.float32:
        raise DtypeError(f"sf.dtype = {sf.dtype}: UE8M0 is packed from torch.float32; convert it with .float().")
