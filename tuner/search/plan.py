"""What a sweep would do, without a GPU or a database: counts for each op kind, and roughly how long measuring takes."""

from deep_gemm import _C
from tuner.measure.backend import count_launches
from tuner.measure.race import CONFIRM_OVERRUN
from tuner.search.problem_run import EFFORTS
from tuner.search.sweep import SweepOptions, choose_candidates, count_measurements, find_kernels

#: Seconds of a problem's buffers and reference, of a config's two checks and graph, as swept on an H200; kernels come
#: on top.
SETUP_S = 0.05
CONFIG_S = 0.002


def plan_sweep(options: SweepOptions, device) -> dict:
    """Return what a sweep would measure on `device`: counts, kernels, and a rough estimate of the measuring time, in
    all and by op kind.
    """
    candidates = {problem: choose_candidates(problem, device, options) for problem in options.problems}
    ops = {
        op: plan_op({problem: configs for problem, configs in candidates.items() if problem.op == op}, options, device)
        for op in find_ops(candidates)
    }
    measurements = count_measurements(options, device, candidates)
    return {
        "device": device.sku,
        "problems": len(candidates),
        "measurements": measurements,
        "kernels": min(len(find_kernels(candidates)), measurements),
        "largest_space": max(map(len, candidates.values()), default=0),
        "effort": {"name": options.effort, **EFFORTS[options.effort]},
        "options": {
            name: getattr(options, name)
            for name in ("preset", "space", "sampler", "num_trials", "seed", "workload", "shard")
        },
        "ops": ops,
        "rough_seconds": round(sum(op["rough_seconds"] for op in ops.values()), 1),
    }


def find_ops(candidates: dict) -> list[str]:
    """Return the op kinds of {problem: configs} in order."""
    return list(dict.fromkeys(problem.op for problem in candidates))


def plan_op(candidates: dict, options: SweepOptions, device) -> dict:
    """Return the counts and rough seconds of one op kind's {problem: configs}."""
    measurements = count_measurements(options, device, candidates)
    seconds = sum(estimate_seconds(problem, configs, options, device) for problem, configs in candidates.items())
    kernels = min(len(find_kernels(candidates)), measurements)
    return {
        "problems": len(candidates),
        "kernels": kernels,
        "measurements": measurements,
        "rough_seconds": round(seconds, 1),
    }


def estimate_seconds(problem, configs: list, options: SweepOptions, device) -> float:
    """Return roughly how long measuring one problem takes: its race (see race.Race) at the heuristic's estimates.

    That a race drops slow configs, and that it confirms more than its finalists where there is time, are left out: they
    nearly cancel. The recorded H200 sweeps took 0.7 to 1.9 times this, by preset and op kind.
    """
    effort, launches = (
        EFFORTS[options.effort],
        count_launches(_C.estimate_time_us(problem, _C.get_analytic_config(problem, device), device)),
    )
    replays = sorted(launches * _C.estimate_time_us(problem, config, device) * 1e-6 for config in configs)
    measured = count_measurements(options, device, {problem: configs})
    search = effort["search_rounds"] * measured * sum(replays) / len(replays)
    confirm = effort["confirm_rounds"] * (
        sum(replays[: effort["finalists"]]) + replays[0]
    )  # the reference runs twice a round
    return (
        SETUP_S
        + CONFIG_S * measured
        + min(search, effort["search_seconds"])
        + min(confirm, CONFIRM_OVERRUN * effort["confirm_seconds"])
    )
