"""Common code of compute-sanitizer's dense and grouped children: which configs they run, and launches on copies."""

from collections.abc import Callable, Sequence

import torch

from .memory import copy_to_gpu


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


def get_knobs(config) -> tuple[int, int, int, int]:
    """Return the knobs of the main loop."""
    return config.loop, config.scale_warp, config.tile_barrier, config.reduce_add


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
