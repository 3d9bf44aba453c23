"""Where the rows of groups lie that come one after the other, each group from a multiple of an alignment on."""

import torch


def find_starts(counts: torch.Tensor, alignment: int) -> torch.Tensor:
    """Return the first row of each group, int64 [..., groups], of `counts` [..., groups]."""
    lengths = (counts.long() + alignment - 1) // alignment * alignment
    return lengths.cumsum(-1) - lengths


def count_most_rows(choices: int, groups: int, alignment: int) -> int:
    """Return the rows that so many choices of groups can need, with those between groups."""
    return (choices + min(groups, choices) * (alignment - 1)) // alignment * alignment
