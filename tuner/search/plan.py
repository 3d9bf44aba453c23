"""What a sweep would do, without a GPU or a database: counts per op kind, and roughly how long measuring takes."""

from dataclasses import asdict

from deep_gemm import _C
from tuner import errors
from tuner.measure.backend import count_launches
from tuner.measure.race import CONFIRM_OVERRUN
from tuner.problems.workload import Workload, count_draws
from tuner.search import energy, propose, rests
from tuner.search.candidates import SweepOptions, choose_candidates, count_measurements, find_kernels, find_ops
from tuner.search.problem_run import EFFORTS

#: Seconds that a problem's buffers and reference take, and a config's two checks and graph, besides its kernels' own
#: time: seen in sweeps on an H200.
SETUP_S = 0.05
CONFIG_S = 0.002


def plan_sweep(options: SweepOptions, device) -> dict:
    """Return what a sweep would measure on `device`, in all and by op kind: counts, and a rough time in seconds."""
    candidates = {problem: choose_candidates(problem, device, options) for problem in options.problems}
    ops = {
        op: plan_op({problem: configs for problem, configs in candidates.items() if problem.op == op}, options, device)
        for op in find_ops(candidates)
    }
    measurements = count_measurements(options, device, candidates)
    return {
        "device": device.sku,
        "problems": len(candidates),
        "space": sum(map(len, candidates.values())),
        "measurements": measurements,
        "kernels": min(len(find_kernels(candidates)), measurements),
        "largest_space": max(map(len, candidates.values()), default=0),
        "effort": {"name": options.effort, **asdict(EFFORTS[options.effort])},
        "options": {
            name: getattr(options, name)
            for name in ("preset", "space", "sampler", "num_trials", "seed", "workload", "shard", "energy")
        },
        "ops": ops,
        "rough_seconds": round(sum(op["rough_seconds"] for op in ops.values()), 1),
    }


def check_trials(options: SweepOptions) -> None:
    """Raise UsageError where a number of trials is given and no problem would be searched, as on an H200."""
    if options.num_trials is None or not options.problems:
        return
    device, sampler = _C.Device.known("h200"), options.sampler
    spaces = (len(choose_candidates(problem, device, options)) for problem in options.problems)
    if all(propose.choose_sampler(sampler, size) == "exhaustive" for size in spaces):
        which = "every space" if sampler == "exhaustive" else f"spaces of up to {propose.EXHAUSTIVE_LIMIT} configs"
        raise errors.UsageError(
            f"--n-trials {options.num_trials}: no problem would be searched, since --sampler {sampler} measures {which}"
            " whole; name another, such as --sampler forest, or drop --n-trials"
        )


def plan_op(candidates: dict, options: SweepOptions, device) -> dict:
    """Return the counts and rough seconds of one op kind's {problem: configs}."""
    measurements = count_measurements(options, device, candidates)
    seconds = sum(estimate_seconds(problem, configs, options, device) for problem, configs in candidates.items())
    kernels = min(len(find_kernels(candidates)), measurements)
    return {
        "problems": len(candidates),
        "space": sum(map(len, candidates.values())),
        "kernels": kernels,
        "measurements": measurements,
        "rough_seconds": round(seconds, 1),
    }


def estimate_seconds(problem, configs: list, options: SweepOptions, device) -> float:
    """Return roughly how many seconds it takes to race one problem, with the heuristic's estimates as times.

    A race drops slow configs, and where there is time it confirms more than its finalists. Both are left out, because
    they nearly cancel. The recorded H200 sweeps took 0.7 to 1.9 times this, depending on preset and op kind.
    """
    plan = EFFORTS[options.effort]
    draws = count_draws(problem, Workload(options.workload, options.seed))
    launches = count_launches(_C.estimate_time_us(problem, _C.get_analytic_config(problem, device), device), draws)
    replays = sorted(launches * _C.estimate_time_us(problem, config, device) * 1e-6 for config in configs)
    measured = count_measurements(options, device, {problem: configs})
    search = plan.search_rounds * measured * sum(replays) / len(replays)
    # The reference runs twice in a confirmation round.
    finalists = max(plan.finalists, len(options.must_confirm.get(problem, ())))
    confirm = plan.confirm_rounds * (sum(replays[:finalists]) + replays[0])
    raced = min(search, plan.search_seconds) + min(confirm, CONFIRM_OVERRUN * plan.confirm_seconds)
    more = estimate_rests(replays, launches, options) + energy.estimate_seconds(measured, options.energy)
    return SETUP_S + CONFIG_S * measured + raced + more


def estimate_rests(replays: list[float], launches: int, options: SweepOptions) -> float:
    """Return roughly how many seconds the times after rests take; `replays` are all configs' seconds, ascending."""
    if not options.rests or replays[0] / launches < rests.FROM_US * 1e-6:
        return 0.0
    plan = rests.make_plan(EFFORTS[options.effort])
    rounds = (plan.search_rounds + plan.confirm_rounds) * (1.0 + plan.rest)
    raced = rounds * sum(replays[: rests.MAX_FINALISTS])
    return SETUP_S + min(raced, rests.MAX_SECONDS)
