"""Where the rows of groups lie that come one after the other, each group from a multiple of an alignment on, and which
row of a group a choice of it has. On a GPU one kernel finds the latter (place_rows.cuh).
"""

import enum

import torch

from deep_gemm.planned import KernelOf

#: Counters of place_rows.cuh for one of its warps, and with how many it has all its warps.
MOST_GROUPS, _OF_ALL_WARPS = 8192, 256
_LEAST, _THREADS = 128, 1024


class Form(enum.IntEnum):
    """What place_rows.cuh finds: its PlaceForm."""

    RANKS = 0
    CONTIGUOUS = 1
    MASKED = 2


def find_placing_kernel(num_groups: int, form: Form) -> KernelOf:
    """Return what get_kernel takes for the kernel that places choices of up to MOST_GROUPS groups."""
    counters = max(_LEAST, 1 << (num_groups - 1).bit_length())
    threads = _THREADS * _OF_ALL_WARPS // max(counters, _OF_ALL_WARPS)
    return "place_rows", threads, {"kExperts": counters, "kForm": int(form)}


def rank_choices(groups: torch.Tensor, num_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (position of each choice of a group among those of its group, in their order, int64 of the shape of
    `groups`; how many choices each group has, int64 [num_groups]). The position of a choice of no group is anything.
    """
    flat = groups.flatten()
    flat = flat.where((flat >= 0) & (flat < num_groups), num_groups)
    counts = torch.zeros(num_groups + 1, dtype=torch.int64, device=flat.device).scatter_add_(
        0, flat, torch.ones_like(flat)
    )
    order = flat.argsort(stable=True)
    starts = (counts.cumsum(0) - counts)[flat[order]]
    ranks = torch.empty_like(flat).scatter_(0, order, torch.arange(flat.numel(), device=flat.device) - starts)
    return ranks.view_as(groups), counts[:num_groups]


def find_starts(counts: torch.Tensor, alignment: int) -> torch.Tensor:
    """Return the first row of each group, int64 [..., groups], of `counts` [..., groups]."""
    lengths = (counts.long() + alignment - 1) // alignment * alignment
    return lengths.cumsum(-1) - lengths


def count_most_rows(choices: int, groups: int, alignment: int) -> int:
    """Return the rows that so many choices of groups can need, with those between groups."""
    return (choices + min(groups, choices) * (alignment - 1)) // alignment * alignment
