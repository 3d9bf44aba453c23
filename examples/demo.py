"""The whole path in one go: measure (or replay), learn, export, and use the learned choice. Run it with `make demo`.

With an SM90 GPU: sweep twelve problems on it, learn from what was measured (together with the recorded sweep where that
was made with the same kernels on the same GPU model), export the selector, multiply through it, and time its choices
beside the heuristic's. Without one: the same loop on the recorded H200 sweep, its search replayed, ending in an
evaluated and exported selector, a table and a plot; the product itself runs on the CPU reference. Where that sweep was
made with other kernels than these, the demo's own problems are swept on simulated times instead.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import deep_gemm
from deep_gemm import _C, selection
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.numerics import widen
from deep_gemm.older_kernels import list_serving
from deep_gemm.selector import Selector
from tuner.commands.tables import format_table
from tuner.db import Store, snapshot_path
from tuner.learn.dataset import UNMEASURED, load_dataset
from tuner.learn.sources import RECORDED_SKU, open_database
from tuner.problems.shapes import load_preset

OP = "fp8_gemm"
ROWS = 12
#: Launches in a timed CUDA graph, and its replays; each is timed in turn with the other configs of the problem.
LAUNCHES, REPLAYS = 20, 15
HEADINGS = ("m", "n", "k", "heuristic us", "left out", "us", "by", "speed-up", "in-sample")
#: What a reader must know of the table.
LEGEND = (
    "left out: the choice of a selector trained without all problems of this weight and similar ones;",
    "in-sample: the speed-up of the exported selector, which was trained on these very problems",
)
#: How sentences are printed: as they are, so that a command can be copied from a narrow terminal, too.
PLAIN = {"highlight": False, "markup": False, "soft_wrap": True}
console = Console()


def run_tuner(*arguments: object) -> None:
    """Run one tuner command and show it; a failure ends the demo with its exit code."""
    words = [str(word) for word in arguments]
    console.print(f"$ python -m tuner {shlex.join(words)}", style="bold", **PLAIN)
    status = subprocess.run([sys.executable, "-m", "tuner", *words], check=False).returncode
    if status:
        sys.exit(status)


def find_gpu() -> "_C.Device | None":
    """Return the current GPU where the kernels can run on it, else None."""
    try:
        device = _C.get_device() if torch.cuda.is_available() else None
    except DeepGemmError as error:
        console.print(f"no usable GPU: {error}", **PLAIN)
        return None
    return device if device is not None and tuple(device.compute_capability) == (9, 0) else None


def measure(out: Path, device: "_C.Device") -> Path:
    """Sweep the demo preset into a database and return the one to learn from."""
    database = out / "tuning.db"
    run_tuner("sweep", "--preset", "demo", "--db", database)
    if device.sku != RECORDED_SKU or not is_recording_current():
        return database
    merged = out / "merged.db"
    merged.unlink(missing_ok=True)
    run_tuner("db", "merge", merged, snapshot_path(RECORDED_SKU), database)
    return merged


def is_recording_current() -> bool:
    """Return whether the recorded sweep was made with the kernels of this package, or with older ones that choose for
    these.
    """
    recorded = snapshot_path(RECORDED_SKU)
    if not recorded.exists():
        return False
    with Store.open(recorded, mode="immutable") as store:
        return store.newest_kernel_hash(OP, RECORDED_SKU) in list_serving(OP, kernel_hash(OP))


def find_recording(out: Path) -> Path:
    """Return the recorded sweep, or where it is of other kernels a sweep of the demo's problems on simulated times."""
    if is_recording_current():
        console.print("no SM90 GPU here: replaying the sweep that was recorded on an H200", **PLAIN)
        return snapshot_path(RECORDED_SKU)
    console.print("no SM90 GPU here, and the recorded sweep is of other kernels: sweeping on simulated times", **PLAIN)
    database = out / "simulated.db"
    run_tuner("sweep", "--preset", "demo", "--backend", "simulated", "--db", database)
    return database


def learn(out: Path, database: Path) -> Path:
    """Train, evaluate and export the op kind that is shown here, of those in the database; return the artefact."""
    training, models = out / "training", out / "models"
    # Fewer trees than by default: validation fits them hundreds of times, and the whole demo is to take minutes.
    run_tuner("train", "--db", database, "--op", OP, "--out", training, "--trees", "18", "--rate", "0.3")
    run_tuner("evaluate", "--training", training, "--op", OP, "--db", database, "--plot", out / "regret.png")
    # Few problems cannot meet the gates of a release, and the recorded sweep does not meet all of them; the model card
    # then says so.
    run_tuner("export", "--training", training, "--op", OP, "--db", database, "--out", models, "--force")
    return next(models.glob("*.dgsel"))


def choose(problem: "_C.Problem", device: "_C.Device", artefact: Path) -> "_C.Choice":
    """Return the artefact's choice, which a call would run: by its exact table where that has the problem."""
    return Selector(artefact.read_bytes()).choose(problem, device)


def multiply(problem: "_C.Problem", place: str) -> float:
    """Run the op once on fresh random data on `place` and return its calc_diff to the dequantised product."""
    x, y = torch.randn(problem.m, problem.k, device=place), torch.randn(problem.n, problem.k, device=place)
    a, b = deep_gemm.per_token_cast_to_fp8(x, False), deep_gemm.per_block_cast_to_fp8(y, False)
    d = torch.full((problem.m, problem.n), float("nan"), dtype=torch.bfloat16, device=place)
    deep_gemm.fp8_gemm_nt(a, b, d)
    reference = widen(*a, torch.float64) @ widen(*b, torch.float64).T
    return deep_gemm.testing.calc_diff(d, reference)


def time_configs(problem: "_C.Problem", configs: list, ordinal: int) -> dict:
    """Return {config: microseconds} on this GPU: CUDA graphs over enough buffers to leave L2 cold, replayed in turn."""
    from deep_gemm.jit import build

    pairs = max(2, -(-(180 << 20) // (problem.n * problem.k + problem.m * problem.k)))
    buffers = []
    for _ in range(min(pairs, LAUNCHES)):
        a, scale_a = deep_gemm.per_token_cast_to_fp8(torch.randn(problem.m, problem.k, device="cuda"), False)
        b = deep_gemm.per_block_cast_to_fp8(torch.randn(problem.n, problem.k, device="cuda"), False)
        scale_a = deep_gemm.get_mn_major_tma_aligned_tensor(scale_a)
        buffers.append((a, scale_a, *b, torch.empty(problem.m, problem.n, dtype=torch.bfloat16, device="cuda")))
    stream, graphs = torch.cuda.Stream(), {}
    for config in configs:
        result = build.get_cubin(problem, config)
        kernel = _C.Kernel(result.cubin, result.kernel_name, problem, config, ordinal)
        graphs[config] = (capture(kernel, buffers, stream), kernel)
    times: dict = {config: [] for config in configs}
    for _ in range(REPLAYS):
        for config, (graph, _) in graphs.items():
            times[config].append(time_replay(graph, stream))
    return {config: sorted(values)[len(values) // 2] for config, values in times.items()}


def capture(kernel: "_C.Kernel", buffers: list, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Record LAUNCHES launches over the buffers in turn."""
    with torch.cuda.stream(stream):
        kernel.launch(*buffers[0], stream=stream.cuda_stream)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for index in range(LAUNCHES):
            kernel.launch(*buffers[index % len(buffers)], stream=stream.cuda_stream)
        graph.capture_end()
    return graph


def time_replay(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> float:
    """Return microseconds a launch of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record(stream)
        graph.replay()
        end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / LAUNCHES


def read_left_out(training: Path) -> dict[str, "_C.Choice"]:
    """Return {key of a problem: choice} of selectors that were trained without the problem's family of weights."""
    rows = json.loads((training / OP / "out_of_fold.json").read_text(encoding="ascii"))["rows"]
    return {row["problem"]: _C.Choice(_C.Config(**row["config"]), row["source"], "left out") for row in rows}


def compare_on_gpu(artefact: Path, device: "_C.Device", left_out: dict) -> list[dict]:
    """Time the heuristic's pick and the choices of each demo problem on this GPU, and check the product."""
    os.environ["DG_SELECTOR"] = str(artefact.resolve())
    selection.forget_selectors()
    rows = []
    for problem in load_preset("demo"):
        before = _C.get_analytic_config(problem, device)
        choices = selection.explain(problem, device), left_out.get(problem.key)
        configs = [before, *(choice.config for choice in choices if choice)]
        times = time_configs(problem, list(dict.fromkeys(configs)), torch.cuda.current_device())
        rows.append(make_row(problem, times, before, *choices) | {"calc_diff": multiply(problem, "cuda")})
    return rows


def compare_recorded(artefact: Path, database: Path, left_out: dict) -> list[dict]:
    """Look the times of the heuristic's pick and of the choices up in the recorded sweep, evenly over its full-space
    problems of the plain variant, which `m`, `n` and `k` name.

    A problem of which the sweep lacks a choice, such as one with knobs that a later rule gives, is left out.
    """
    with open_database(str(database)) as store:
        data = load_dataset(store, "", op=OP)
    known, full = [], [index for index in np.flatnonzero(data.full_space).tolist() if is_plain(data.problems[index])]
    for index in full:
        problem = data.problems[index]
        choice = choose(problem, data.device, artefact)
        if choice.config in timed_configs(data, index):
            known.append((index, choice))
    if len(known) < len(full):
        print(
            f"{len(full) - len(known)} of {len(full)} recorded problems left out: the sweep lacks what is chosen today"
        )
    rows = []
    for index, choice in known[:: max(len(known) // ROWS, 1)][:ROWS]:
        problem, before = data.problems[index], data.configs[data.heuristic[index]]
        times = {
            config: float(data.heuristic_us[index]) * math.exp(log)
            for config, log in timed_configs(data, index).items()
        }
        rows.append(make_row(problem, times, before, choice, left_out.get(problem.key)))
    return rows


def is_plain(problem: "_C.Problem") -> bool:
    """Return whether a problem has no other fields than its sizes."""
    return problem.key == _C.Problem(OP, problem.m, problem.n, problem.k).key


def timed_configs(data, index: int) -> dict:
    """Return {config: log ratio to the heuristic's pick} of one problem of a Dataset."""
    columns = np.flatnonzero(data.state[index] != UNMEASURED).tolist()
    return {data.configs[column]: float(data.log_ratio[index, column]) for column in columns}


def make_row(
    problem: "_C.Problem", times: dict, before: "_C.Config", choice: "_C.Choice", left_out: "_C.Choice | None"
) -> dict:
    """Return one line of the table; `times` are microseconds by config."""
    row = {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "heuristic": str(before),
        "heuristic_us": round(times[before], 2),
        "learned": str(choice.config),
        "learned_us": round(times[choice.config], 2),
        "source": choice.source,
        "speed_up": round(times[before] / times[choice.config], 3),
    }
    if left_out is None:
        return row
    return row | {
        "left_out": str(left_out.config),
        "left_out_us": round(times[left_out.config], 2),
        "left_out_source": left_out.source,
        "left_out_speed_up": round(times[before] / times[left_out.config], 3),
    }


def show(rows: list[dict], title: str) -> None:
    """Print the table, what its columns are, and the mean speed-ups."""
    cells = [(row["m"], row["n"], row["k"], f"{row['heuristic_us']:.2f}", *describe_choices(row)) for row in rows]
    means = {name: mean_of(rows, key) for name, key in (("left out", "left_out_speed_up"), ("in-sample", "speed_up"))}
    means_text = ", ".join(f"{mean:.3f}x {name}" for name, mean in means.items() if mean is not None)
    print("\n".join(["", title, format_table(HEADINGS, cells), *LEGEND, f"geometric mean speed-up: {means_text}"]))


def describe_choices(row: dict) -> tuple[str, ...]:
    """Return the cells of the two selectors' choices."""
    in_sample = f"{row['speed_up']:.3f}x"
    if "left_out" not in row:
        return "-", "-", "-", "-", in_sample
    speed_up = f"{row['left_out_speed_up']:.3f}x"
    return row["left_out"], f"{row['left_out_us']:.2f}", row["left_out_source"], speed_up, in_sample


def mean_of(rows: list[dict], key: str) -> float | None:
    """Return the geometric mean of a column, None where no row has it."""
    logs = [math.log(row[key]) for row in rows if key in row]
    return math.exp(sum(logs) / len(logs)) if logs else None


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        help="folder for the database, the training folder, the selector and the plot",
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    device = find_gpu()
    if device is not None:
        database = measure(out, device)
        artefact = learn(out, database)
        rows = compare_on_gpu(artefact, device, read_left_out(out / "training"))
        show(rows, f"{device.name}: heuristic against learned choice, measured now")
    else:
        database = find_recording(out)
        is_simulated = database.parent == out
        run_tuner("simulate", "--db", database, "--op", OP, "--problems", 6, "--seeds", 1)
        artefact = learn(out, database)
        rows = compare_recorded(artefact, database, read_left_out(out / "training"))
        origin = "Simulated" if is_simulated else "Recorded on an H200"
        show(rows, f"{origin}: heuristic against the model's choice (from the sweep, not measured now)")
        problem = _C.Problem(OP, 64, 256, 512)
        console.print(f"fp8_gemm_nt on the CPU reference: calc_diff {multiply(problem, 'cpu'):.1e}", **PLAIN)
    result = {
        "meta": {"device": device.name if device else "recorded", "kernel_hash": {OP: kernel_hash(OP)}},
        "rows": rows,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"selector: {artefact}   plot: {out / 'regret.png'}   numbers: {out / 'result.json'}", **PLAIN)


if __name__ == "__main__":
    main()
