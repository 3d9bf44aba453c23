"""Plain kernels: those that are no GEMM and have no config. Their table, and the CUDA source of each.

A plain kernel is a header of `deep_gemm/include/deep_gemm` that defines an aggregate of the header's name in CamelCase,
`template <class Config> struct CastRows`: its fields are the arguments of the launch in order, `run()` is the kernel,
`kThreads` and `kCtasPerSm` are its launch bounds. `Config` holds the constants that the launch asks for. The source
takes validated integers only.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from deep_gemm.errors import ProblemError

_TEMPLATE = """\
// {name}
#include "deep_gemm/types.cuh"

namespace deep_gemm {{

struct Config {{
{constants}
}};

}}  // namespace deep_gemm

#include "deep_gemm/{name}.cuh"

extern "C" __global__ void {cluster}__launch_bounds__(deep_gemm::{kernel_class}<deep_gemm::Config>::kThreads, \
deep_gemm::{kernel_class}<deep_gemm::Config>::kCtasPerSm)
{symbol}({parameters}) {{
    deep_gemm::{kernel_class}<deep_gemm::Config>{{{arguments}}}.run();
}}
"""

#: The header holds the whole kernel.
_MQA_METADATA = """\
#include "deep_gemm/mqa_metadata.cuh"
"""

_CONSTANT = re.compile(r"k[A-Z][A-Za-z0-9]{0,30}")


class PlainRow(NamedTuple):
    """A row of the table.

    `parameters`: the types of the entry's arguments; pointers and integers of at most 8 bytes, and floats. `constants`:
    names of Config's members, 64-bit integers. `cluster`: which of them counts the CTAs of a cluster. `source`:
    the whole text, where it is not made from the template. `symbol`: of the entry, where it is not `deep_` and the
    name. Callers time kernels by parts of their symbols: those that DeepGEMM's tests ask for have its names, and no
    pass before or behind a product has "gemm".
    """

    parameters: tuple[str, ...]
    constants: tuple[str, ...] = ()
    source: str | None = None
    cluster: str | None = None
    symbol: str | None = None


_OF_SWIGLU = ("kSwiglu", "kInterleaved", "kLimited")
_BYTES, _U32, _I64 = "deep_gemm::u8*", "deep_gemm::u32", "deep_gemm::i64"

#: By the name of the header.
PLAIN_KERNELS: dict[str, PlainRow] = {
    "transpose_fp8": PlainRow((f"const {_BYTES}", _BYTES, *[_I64] * 4, *[_U32] * 3) * 2),
    "cast_rows": PlainRow(
        ("const void*", _BYTES, "float*", "const int*", *[_U32] * 6, *[_I64] * 5, _U32),
        ("kElement", "kGran", "kUe8m0", *_OF_SWIGLU, "kMasked", "kAligned", "kSaturates"),
    ),
    "cast_blocks": PlainRow(
        ("const void*", _BYTES, "float*", *[_U32] * 2, *[_I64] * 5),
        ("kElement", "kGran", "kUe8m0", "kPerColumn", "kAligned", "kSaturates"),
    ),
    "swiglu_grad": PlainRow(
        ("const void*", "const void*", _BYTES, _BYTES, *[_U32] * 5, *[_I64] * 2), ("kElement", "kHasY", "kAligned")
    ),
    "place_rows": PlainRow((f"const {_I64}*", _BYTES, "int*", *[_U32] * 5), ("kExperts", "kForm")),
    "spread_rows": PlainRow(
        (f"const {_BYTES}", f"const {_I64}*", "const float*", _BYTES, *[_U32] * 6, _I64), ("kElement", "kWeighted")
    ),
    "combine_rows": PlainRow(
        (f"const {_BYTES}", f"const {_I64}*", "const float*", _BYTES, *[_U32] * 6, _I64), ("kElement", "kWeighted")
    ),
    "scale_layout": PlainRow(
        (f"const {_U32}*", f"{_U32}*", "const int*", *[_U32] * 3, *[_I64] * 4),
        ("kPack", "kAligned"),
        symbol="deep_transpose_or_pack_fp32_into_ue8m0",
    ),
    "k_grouped_packing": PlainRow(
        (f"const {_U32}*", "const int*", f"{_U32}*", *[_U32] * 5, _I64),
        ("kEnds", "kAligned"),
        symbol="deep_k_grouped_pack_fp32_into_ue8m0",
    ),
    "mega_pull": PlainRow(
        (
            *[f"const {_I64}*"] * 2,
            *["const int*"] * 2,
            _BYTES,
            "float*",
            "int*",
            *[_I64] * 3,
            *[_U32] * 8,
        ),
    ),
    "mega_combine": PlainRow(
        (*[f"const {_I64}*"] * 2, "const float*", *["const int*"] * 2, _BYTES, *[_I64] * 2, *[_U32] * 5),
    ),
    "sum_parts": PlainRow(
        ("const float*", "const float*", "void*", *["deep_gemm::i64"] * 4, *["deep_gemm::u32"] * 3),
        constants=("kFloatD", "kHasC"),
    ),
    "sum_products": PlainRow(
        (
            *["const deep_gemm::u16*"] * 2,
            "const float*",
            "void*",
            *["deep_gemm::i64"] * 6,
            *["deep_gemm::u32"] * 4,
        ),
        constants=("kFloatD", "kHasC", "kParts"),
        cluster="kParts",
        symbol="deep_gemm_sum_products",
    ),
    "hc_prenorm": PlainRow(
        (
            "const deep_gemm::u16*",
            "const float*",
            "float*",
            "float*",
            *["deep_gemm::i64"] * 5,
            *["deep_gemm::u32"] * 4,
        ),
        constants=("kColumnTiles", "kRowTiles", "kParts"),
        cluster="kParts",
        symbol="deep_gemm_tf32_hc_prenorm_gemm",
    ),
    "hc_prenorm_sum": PlainRow(
        ("const float*", "const float*", "float*", "float*", "deep_gemm::i64", *["deep_gemm::u32"] * 3)
    ),
    "mqa_metadata": PlainRow(
        ("const int*", "int*", "deep_gemm::i64", *["deep_gemm::u32"] * 3),
        source=_MQA_METADATA,
        symbol="deep_paged_mqa_logits_metadata",  # the header's own
    ),
}


def plain_symbol(name: str) -> str:
    """Return the symbol of a plain kernel. Raises ProblemError for an unknown one."""
    return _row(name).symbol or f"deep_{name}"


def plain_source(name: str, constants: Mapping[str, int] | None = None) -> str:
    """Return the CUDA source of the plain kernel `name` with `constants`, exactly those of its row.

    Raises: ProblemError for an unknown kernel, and for constants that are not its own.
    """
    row, constants = _row(name), dict(constants or {})
    if set(constants) != set(row.constants) or not all(_is_constant(*item) for item in constants.items()):
        raise ProblemError(f"constants = {constants}: {name} takes integers {list(row.constants)}; pass each of them.")
    if row.source is not None:
        return row.source
    parameters = ", ".join(f"{kind} a{i}" for i, kind in enumerate(row.parameters))
    cluster = constants[row.cluster] if row.cluster else 1
    return _TEMPLATE.format(
        name=name,
        symbol=plain_symbol(name),
        cluster=f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else "",
        constants="\n".join(f"    static constexpr i64 {key} = {constants[key]};" for key in row.constants),
        kernel_class="".join(word.capitalize() for word in name.split("_")),
        parameters=parameters,
        arguments=", ".join(f"a{i}" for i in range(len(row.parameters))),
    )


def _row(name: str) -> PlainRow:
    if name not in PLAIN_KERNELS:
        raise ProblemError(f"kernel = {name!r}: no such plain kernel; use one of {', '.join(sorted(PLAIN_KERNELS))}.")
    return PLAIN_KERNELS[name]


def _is_constant(name: str, value: int) -> bool:
    return bool(_CONSTANT.fullmatch(name)) and type(value) is int and -(1 << 62) <= value <= 1 << 62
