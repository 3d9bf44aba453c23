"""The jobs of the GPU suite, and the child process that runs them; parent.py starts it and reads its reports."""

import argparse
import json
import os
import time
import traceback

#: Of every public function, and so of every op kind.
OP_SECTIONS = ("ops", "op_repeats")
GROUPED_SECTIONS = ("grouped_configs", "grouped_repeats", "grouped_semantics")
DENSE_SECTIONS = ("configs", "portfolio_repeats", "space_repeats", "semantics", "calls")
#: In the order in which they run: the public functions first, then what takes longest.
SECTIONS = (
    *OP_SECTIONS,
    "configs",
    *GROUPED_SECTIONS,
    "semantics",
    "logits",
    "portfolio_repeats",
    "einsum",
    "plain_kernels",
    "nn",
    "space_repeats",
    "calls",
    "nvcc",
    "worker_faults",
)
#: Sections that time: they run when nothing else does.
ALONE_SECTIONS = ("worker_faults",)
#: Seconds without a report after which a job hangs, where JOB_TIMEOUT_S of parent.py is too short.
TIMEOUTS_S = {"worker_faults": 240.0}
#: Exit status of a child whose CUDA context is lost; the next one goes on with the following job.
CONTEXT_LOST = 4


def get_jobs(
    world, sections: list[str], shard: tuple[int, int], ops: tuple[str, ...] = ()
) -> list[tuple[str, str, object]]:
    """Return (section, name, callable) of every job of this shard, in a fixed order; with `ops` those of these op kinds
    alone.
    """
    makers, (index, total) = get_makers(), shard
    jobs = [
        (section, name, job)
        for section in sections
        for name, job in make_jobs(makers[section], world)[index - 1 :: total]
    ]
    return [job for job in jobs if not ops or is_of_ops(job[1], ops)]


def get_makers() -> dict:
    """Return the function that plans the jobs of each section."""
    from .calls import call_jobs
    from .configs import config_jobs, nvcc_jobs
    from .einsum import einsum_jobs
    from .grouped_configs import grouped_config_jobs, grouped_nvcc_jobs
    from .grouped_repeats import grouped_repeat_jobs
    from .grouped_semantics import grouped_semantics_jobs
    from .grouped_tiles import tile_jobs
    from .logits_jobs import logits_jobs
    from .nn_layers import nn_jobs
    from .op_jobs import op_jobs, op_repeat_jobs
    from .plain_kernels import plain_jobs
    from .repeats import portfolio_jobs, space_jobs
    from .semantics import semantics_jobs
    from .worker_faults import worker_fault_jobs

    def both_nvcc_jobs(world) -> list:
        return nvcc_jobs(world) + grouped_nvcc_jobs(world)

    def all_grouped_config_jobs(world) -> list:
        return grouped_config_jobs(world) + tile_jobs(world)

    return {
        "ops": op_jobs,
        "op_repeats": op_repeat_jobs,
        "einsum": einsum_jobs,
        "plain_kernels": plain_jobs,
        "configs": config_jobs,
        "grouped_configs": all_grouped_config_jobs,
        "grouped_repeats": grouped_repeat_jobs,
        "grouped_semantics": grouped_semantics_jobs,
        "logits": logits_jobs,
        "nn": nn_jobs,
        "nvcc": both_nvcc_jobs,
        "portfolio_repeats": portfolio_jobs,
        "space_repeats": space_jobs,
        "semantics": semantics_jobs,
        "calls": call_jobs,
        "worker_faults": worker_fault_jobs,
    }


def is_of_ops(name: str, ops: tuple[str, ...]) -> bool:
    """Return whether a job is of one of the op kinds, by its name; a section that cannot be planned is of all."""
    return name.startswith("planning") or bool(set(name.replace(":", " ").split()) & set(ops))


def make_jobs(maker, world) -> list:
    """Return a section's jobs; a section that cannot be planned is one job that fails with the reason."""
    try:
        return maker(world)
    except Exception as error:  # the other sections still run
        reason = f"{type(error).__name__}: {error}"
        return [("planning: all", lambda: (0, [reason, traceback.format_exc(limit=-3)[-600:]]))]


def get_group(name: str) -> str:
    """Return the group of a job: what stands before the colon of its name."""
    return name.partition(":")[0]


def run_child(args: argparse.Namespace) -> None:
    """Run the jobs from `args.first` on, reporting on the file descriptor `args.report`."""
    import torch

    from .world import World

    torch.backends.cuda.matmul.allow_tf32 = False
    parent = os.getppid()
    with os.fdopen(args.report, "w", buffering=1) as report:

        def send(event: str, **fields) -> None:
            report.write(json.dumps({"event": event, **fields}) + "\n")

        world = World(spread=args.spread)
        world.num_faults = args.worker_faults
        jobs = get_jobs(world, args.sections, args.shard, args.ops)
        send("idle", total=len(jobs), portfolio={op: source for op, (_, source) in world.portfolios.items()})
        for index, (section, name, job) in enumerate(jobs):
            if index < args.first or name in args.skip or get_group(name) in args.skip:
                continue
            if time.time() > args.deadline or os.getppid() != parent:
                return
            send("begin", index=index, section=section, name=name)
            result = run_job(job)
            send("end", index=index, section=section, **result)
            if result["lost"]:
                os._exit(CONTEXT_LOST)
        send("done")


def run_job(job) -> dict:
    """Run one job; an exception is a failure, and one that lost the CUDA context ends this process."""
    import torch

    start = time.monotonic()
    try:
        cases, failures = job()
    except Exception as error:  # the job's failure is data; the suite goes on
        cases, failures = 0, [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)[-600:]]
    seconds = round(time.monotonic() - start, 4)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        failures = [*failures, f"CUDA context lost: {error}"[:300]]
        return {"cases": cases, "failures": failures, "seconds": seconds, "lost": True}
    return {"cases": cases, "failures": failures[:5], "seconds": seconds, "lost": False}
