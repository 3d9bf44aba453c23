"""Common code of compute-sanitizer's children: which configs they run, in which order, and launches on copies."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

from deep_gemm import _C

from .memory import copy_to_gpu


class Program(NamedTuple):
    """What a tool watches: a config on its shapes, or a call.

    op: op kind, empty for a plain kernel. run: -> what was wrong. variant: programs of other variants of the op kind
    come between two of one. cost: to compare with other programs of the variant.
    """

    op: str
    name: str
    run: Callable[[], list[str]]
    variant: str = ""
    cost: float = 0.0


def order_programs(programs: Iterable[Program]) -> list[Program]:
    """Return the programs so that what the end of a time budget leaves is of no kind alone: op kinds take turns, as do
    the variants of each, whose cheapest programs come first.
    """
    found: dict[str, dict[str, list[Program]]] = {}
    for program in sorted(programs, key=lambda program: program.cost):
        found.setdefault(program.op, {}).setdefault(program.variant, []).append(program)
    return take_turns([take_turns(list(variants.values())) for variants in found.values()])


def choose_part(programs: Sequence[Program], index: int, total: int) -> list[Program]:
    """Return the programs of part `index` of `total`, from 1: its share of every op kind, because those of one kind
    may take ten times as long as those of another.
    """
    by_kind = sorted(range(len(programs)), key=lambda place: programs[place].op)
    return [programs[place] for place in sorted(by_kind[index - 1 :: total])]


def take_turns(groups: Sequence[list]) -> list:
    """Return the first items of all groups, then the second ones, and so on."""
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def estimate_cost(config) -> float:
    """Return what a config costs under a tool, roughly: the accesses of its epilogues, which grow with its tile."""
    return config.block_m * config.block_n * config.split_k


def claim(folder: str, index: int) -> bool:
    """Return whether the caller is the first to take the program of that number; without a folder it is."""
    try:
        if folder:
            os.close(os.open(os.path.join(folder, str(index)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def choose_pairs(variants: Sequence, main: Sequence, get_space: Callable, get_signature: Callable) -> list[tuple]:
    """Return every (variant, config) that the tools watch.

    Of the main variants that is one config for each signature, not always the first; of any other one config in turn.
    get_space: variant -> its configs. get_signature: (variant, config) -> what makes it take another path of a kernel.
    """
    pairs = []
    for index, variant in enumerate(variants):
        groups: dict[tuple, list] = {}
        for config in get_space(variant):
            groups.setdefault(get_signature(variant, config), []).append(config)
        chosen = [group[position % len(group)] for position, group in enumerate(groups.values())]
        pairs += [(variant, config) for config in (chosen if variant in main else [chosen[index % len(chosen)]])]
    return pairs


def get_knobs(config) -> tuple[int, ...]:
    """Return the knobs of the main loop."""
    return tuple(getattr(config, name) for name in _C.LOOP_KNOBS)


def launch_on_copies(kernel, operands: Sequence, host, c: torch.Tensor | None, **options: object) -> None:
    """Launch on copies of host tensors, those among the options too; D and what surrounds it come back into `host`.

    c: None, the D of `host` itself, or another tensor.
    """
    options = {name: copy_to_gpu(value) if torch.is_tensor(value) else value for name, value in options.items()}
    buffer = copy_to_gpu(host.buffer)
    d = buffer.view(host.d.dtype).as_strided(host.d.shape, host.d.stride(), host.d.storage_offset())
    kernel.launch(*map(copy_to_gpu, operands), d, d if c is host.d else copy_to_gpu(c), **options)
    if buffer.is_cuda:
        torch.cuda.synchronize()
    host.buffer.copy_(buffer)
