"""FP8 layers in two processes over gloo: DDP and fully_shard give the gradients of one process."""

import copy
import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from deep_gemm.nn import Fp8Linear

#: Rows of each process: whole blocks of 128, so that cutting a batch cuts no block of scales of the weight gradient.
ROWS, RANKS = 128, 2


def make_model(is_trainable: bool) -> torch.nn.Sequential:
    """Return the same small network in every process."""
    torch.manual_seed(7)
    last = Fp8Linear(144, 32, trainable=is_trainable)
    return torch.nn.Sequential(Fp8Linear(48, 144), torch.nn.SiLU(), last)


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of all processes, and the gradient of their output."""
    torch.manual_seed(8)
    return torch.randn(RANKS * ROWS, 48), torch.randn(RANKS * ROWS, 32)


def compute_gradients(model: torch.nn.Module, rank: int | None) -> list[torch.Tensor]:
    """Return the gradients of a process's rows, or the mean over processes where there is one process alone."""
    x, grad = make_batch()
    rows = slice(None) if rank is None else slice(rank * ROWS, (rank + 1) * ROWS)
    (model(x[rows]) * grad[rows]).sum().div(RANKS if rank is None else 1).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.requires_grad]


def check(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Compare gradients; sums over processes are added in another order."""
    whole = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]
    assert len(whole) == len(wanted)
    for grad, right in zip(whole, wanted, strict=True):
        torch.testing.assert_close(grad, right, rtol=1e-4, atol=1e-5)


def run_ddp(rank: int, is_trainable: bool) -> None:
    """Wrap by DDP; gloo sends no FP8, so stored weights are not compared between processes."""
    wanted = compute_gradients(make_model(is_trainable), None)
    model = DistributedDataParallel(make_model(is_trainable), init_sync=is_trainable)
    check(compute_gradients(model, rank), wanted)


def run_fsdp(rank: int, is_trainable: bool) -> None:
    """Shard the layers and the model."""
    from torch.distributed.fsdp import fully_shard

    model, mesh = make_model(is_trainable), init_device_mesh("cpu", (RANKS,))
    wanted = compute_gradients(copy.deepcopy(model), None)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    check(compute_gradients(model, rank), wanted)


def run_rank(rank: int, port: int, run, is_trainable: bool) -> None:
    """Be one process of a group."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        run(rank, is_trainable)
    finally:
        dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize("is_trainable", [True, False])
@pytest.mark.parametrize("run", [run_ddp, run_fsdp])
def test_two_processes_have_the_gradients_of_one(run, is_trainable):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run_rank, (port, run, is_trainable), nprocs=RANKS)
