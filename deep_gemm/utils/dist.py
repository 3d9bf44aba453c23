"""Processes of torch.distributed, under DeepGEMM's names: the tools of its tests with several GPUs."""

import os

import torch
import torch.distributed as distributed

from deep_gemm.errors import ArgumentError
from deep_gemm.operands import check_gpu

_DEFAULT_ADDRESS, _DEFAULT_PORT = "127.0.0.1", 8361

#: Which of its machine's processes this is: what init_dist was told, or else the launcher's LOCAL_RANK.
_local_rank: int | None = None


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, distributed.ProcessGroup]:
    """Join the default process group over NCCL and use GPU `local_rank` from now on.

    MASTER_ADDR and MASTER_PORT say where rank 0 listens; WORLD_SIZE and RANK are the number of machines and the one
    of this process, 1 and 0 by default.

    Returns: (rank, number of ranks, a group of all of them).
    Raises: DeviceError without a GPU.
    """
    check_gpu("init_dist")
    global _local_rank
    address, port = os.environ.get("MASTER_ADDR", _DEFAULT_ADDRESS), int(os.environ.get("MASTER_PORT", _DEFAULT_PORT))
    world_size = int(os.environ.get("WORLD_SIZE", 1)) * num_local_ranks
    torch.cuda.set_device(local_rank)
    torch.set_default_device("cuda")
    distributed.init_process_group(
        backend="nccl",
        init_method=f"tcp://{address}:{port}",
        world_size=world_size,
        rank=int(os.environ.get("RANK", 0)) * num_local_ranks + local_rank,
        device_id=torch.device("cuda", local_rank),
    )
    _local_rank = local_rank
    return distributed.get_rank(), distributed.get_world_size(), distributed.new_group(list(range(world_size)))


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Print the line `s` on every rank, or with `once_in_node` on local rank 0 of each machine, and wait until all
    have. Where neither init_dist nor LOCAL_RANK says which a process is, rank 0 of all prints.

    Raises: ArgumentError without a process group, before anything is printed.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ArgumentError(
            "dist_print(): there is no process group, whose ranks it waits for; call init_dist or"
            " torch.distributed.init_process_group before."
        )
    if not once_in_node or _find_local_rank() == 0:
        print(s, flush=True)
    distributed.barrier()


def _find_local_rank() -> int:
    if _local_rank is not None:
        return _local_rank
    told = os.environ.get("LOCAL_RANK", "")
    return int(told) if told.isdecimal() else distributed.get_rank()


def uneven_all_gather(
    tensor: torch.Tensor, dim: int = 0, group: distributed.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the tensors of all ranks of `group`, one after the other along `dim`, of which their sizes may differ."""
    own = torch.tensor([tensor.shape[dim]], device=tensor.device)
    gathered = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(gathered, own, group=group)
    sizes = [int(size) for size in gathered]
    # The collective moves equal shapes: all send as many as the largest has.
    rows = tensor.movedim(dim, 0)
    sent = rows.new_zeros(max(sizes), *rows.shape[1:])
    sent[: rows.shape[0]] = rows
    received = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(received, sent, group=group)
    return torch.cat([part[:size] for part, size in zip(received, sizes)]).movedim(0, dim).contiguous()
