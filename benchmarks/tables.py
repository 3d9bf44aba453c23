"""Write the generated tables: of the ops in README.md, of measured figures and of regret in docs/performance.md and in
the page of each GPU model beside it, of fits in docs/search.md, and of whole models in docs/nn.md and
docs/tune-your-model.md.

Example: python -m benchmarks.tables

A table stands between `<!-- name: begin -->` and `<!-- name: end -->`.
"""

import sys
from collections.abc import Callable
from functools import partial

from deep_gemm import ops
from tuner.problems.fields import FEW_GROUPS

from .stamp import RECORDS, RESULTS, ROOT, read_json

TITLES = {
    "P1": "dense FP8, 80 problems, speed-up over DeepGEMM",
    "P2": "of these, M <= 64",
    "P3": "of these, M >= 2048",
    "P4": "dense FP8 against unscaled cuBLASLt",
    "P5": "dense BF16, 71 problems in every layout, against cuBLASLt",
    "P6": "FP8 weight gradients (FP32 accumulate), speed-up over DeepGEMM",
    "P7": "grouped contiguous FP8 (MN-major scales) and BF16, 16 problems, speed-up over DeepGEMM",
    "P8": "grouped masked FP8 (MN-major scales) of decode sizes, 8 problems, speed-up over DeepGEMM",
    "P9": "k-grouped FP8 `nt`, 6 problems, speed-up over DeepGEMM",
    "P10": "attention index logits, 48 problems, speed-up over DeepGEMM",
    "P11": "host time of one call on a warm problem, microseconds",
    "P12": "compiling one kernel on one core with NVRTC, median seconds",
    "P13": "choosing for a new shape with the portfolio loaded, microseconds",
    "P15": "casts and layouts at large sizes, bytes a second over those of a copy",
    "P16": "host time of decode-size calls of logits, einsum, casts and layouts, geometric mean of microseconds",
    "S1": "selector for dense products and logits, mean regret on left-out shape families",
    "S2": "share of the heuristic's regret that the selector removes, dense products",
    "S3": "heuristic alone, mean regret",
    "S1_grouped": "selector for grouped products, mean regret on left-out shape families",
    "S2_grouped": "share of the heuristic's regret that the selector removes, groups and attention logits",
    "S3_grouped": "heuristic alone on grouped products, mean regret",
    "S4": "selection of a seen problem, microseconds",
    "R1": "dense FP8 on 60 problems drawn at random, which no one swept, against unscaled cuBLASLt",
    "Q1": "configs within the bounds on config-derived shapes, share",
    "Q2": "configs of the portfolios with the same bits in 1,000 repeats, share",
    "Q3": "programs in the spellings of callers that run, share",
    "Q4": "casts and layouts equal to torch's formula to the bit, share",
    "Q5": "products of einsum and hyper-connections that are right and repeat, share",
}


def make_measured_table(summary: dict) -> list[str]:
    """Return the table of measured figures as lines of Markdown: one row a target.

    The worst problem and the out-of-fold value are left empty where there are none.
    """
    lines = [
        "| figure | what | value | worst | out of fold | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in TITLES.items():
        if name in summary:
            entry = summary[name]
            cells = [
                f"{entry[key]:.4g}" if isinstance(entry.get(key), (int, float)) else ""
                for key in ("value", "worst", "out_of_fold")
            ]
            lines.append(
                f"| {name} | {title} | {' | '.join(cells)} | {entry['target']} | {'yes' if entry['met'] else 'no'} |"
            )
    return lines


#: Targets whose benchmarks time the heuristic's pick beside the selector's.
COMPARED = ("P1", "P5", "P6", "P7", "P8", "P9", "P10", "R1")


def make_choices_table(summary: dict) -> list[str]:
    """Return the table of the selector's and the heuristic's figures in one run as lines of Markdown."""
    lines = ["| figure | selector | heuristic alone |", "| --- | --- | --- |"]
    found = {name: summary[name] for name in COMPARED if name in summary}
    return lines + [f"| {name} | {entry['value']:.3f} | {entry['heuristic']:.3f} |" for name, entry in found.items()]


def make_regret_table(evaluation: dict) -> list[str]:
    """Return the table of regret on left-out families as lines of Markdown: a row for each op kind, and for masked
    products of few groups, which are scored apart.
    """
    heads = "op kind", "problems", "selector", "heuristic", "removed", "at worst slower"
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for op, part in evaluation["ops"].items():
        lines.append(format_regret(op, part["splits"]["family"]))
        if few := part["splits"].get("few_groups"):
            lines.append(format_regret(f"{op}, at most {FEW_GROUPS} groups", few))
    return lines


def format_regret(title: str, split: dict) -> str:
    """Return the line of one op kind: means and p95."""
    model, heuristic = split["model"], split["heuristic"]
    means = [f"{one['mean']:.1%} / {one['p95']:.1%}" for one in (model, heuristic)]
    removed = "" if model["removed"] is None else f"{model['removed']:.0%}"
    return (
        f"| {title} | {model['problems']} | {' | '.join(means)} | {removed} | {model['worst_against_heuristic']:.0%} |"
    )


def make_fits_table(record: dict) -> list[str]:
    """Return the table of the heuristic's regret by fits that did not see the scored problems as lines of Markdown."""
    ways = "present", "blurred", "refitted"
    lines = [f"| op kind | problems | {' | '.join(ways)} |", "| --- " * (len(ways) + 2) + "|"]
    for op, part in record["ops"].items():
        cells = [f"{part[way]['mean']:.2%} / {part[way]['p95']:.1%}" for way in ways]
        lines.append(f"| {op} | {part['problems']} | {' | '.join(cells)} |")
    means = [sum(part[way]["mean"] for part in record["ops"].values()) / len(record["ops"]) for way in ways]
    return [*lines, f"| mean of op kinds | | {' | '.join(f'{mean:.2%}' for mean in means)} |"]


#: Results of benchmarks/models.py, with what their model is called.
MODELS = {
    "models.json": "Llama",
    "models_compiled.json": "Llama, compiled",
    "models_qwen3.json": "Qwen3",
    "models_qwen3_transformers.json": "Qwen3 of transformers",
    "models_deepseek.json": "DeepSeek",
}


def make_models_table() -> list[str]:
    """Return the table of whole models as lines of Markdown: one row a model and case."""
    heads = "model", "phase", "tokens", "BF16 tokens/s", "FP8 tokens/s", "speed-up", "torchao", "peak GB", "cosine"
    lines = [f"| {' | '.join(heads)} | products, casts |", "| --- " * (len(heads) + 1) + "|"]
    for name, title in MODELS.items():
        lines += [format_model(title, row) for row in read_json(RESULTS / name)["rows"]]
    return lines


def format_model(title: str, row: dict) -> str:
    """Return the line of one case of a model; that of one that failed has no figures."""
    if "failed" in row:
        return f"| {title} | {row['phase']} | {row['sequences'] * row['length']} | failed" + " |" * 7
    peaks = " and ".join(f"{row[f'{model}_peak_mb'] / 1e3:.1f}" for model in ("bf16", "fp8"))
    other = f"{row['torchao_speedup']:.2f}" if "torchao_speedup" in row else ""
    shares = ", ".join(f"{row['share'][part]:.0%}" for part in ("products", "casts"))
    return (
        f"| {title} | {row['phase']} | {row['tokens']} | {row['bf16_tokens_s']:,.0f} | {row['fp8_tokens_s']:,.0f}"
        f" | {row['speedup']:.2f} | {other} | {peaks} | {row['cosine']:.3f} | {shares} |"
    )


def make_tuned_table() -> list[str]:
    """Return the table of a model before and after tuning as lines of Markdown."""
    from .tuned_models import format_table

    return format_table(read_json(RESULTS / "tuned_models.json")["rows"]).splitlines()


def make_recorded(make_lines: Callable[[dict], list[str]], model: str, file: str) -> list[str]:
    """Return the table of a result of a GPU model."""
    return make_lines(read_json(RECORDS / model / file))


#: Name of a table -> its page and what makes its lines.
TABLES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "ops": ("README.md", ops.make_table),
    "measured": ("docs/performance.md", lambda: make_measured_table(read_json(RESULTS / "summary.json"))),
    "h100": ("docs/performance-h100.md", lambda: make_measured_table(read_json(RECORDS / "h100" / "summary.json"))),
    **{
        f"{name}-{model}": (page, partial(make_recorded, make_lines, model, file))
        for name, model, page, make_lines, file in (
            ("choices", "h200", "docs/performance.md", make_choices_table, "summary.json"),
            ("choices", "h100", "docs/performance-h100.md", make_choices_table, "summary.json"),
            ("regret", "h200", "docs/performance-h200.md", make_regret_table, "evaluation.json"),
            ("regret", "h100", "docs/performance-h100.md", make_regret_table, "evaluation.json"),
            ("fits", "h200", "docs/search.md", make_fits_table, "fit_rates.json"),
            ("fits", "h100", "docs/search.md", make_fits_table, "fit_rates.json"),
        )
    },
    "models": ("docs/nn.md", make_models_table),
    "tuned": ("docs/tune-your-model.md", make_tuned_table),
}


def replace_table(page: str, name: str, lines: list[str]) -> str:
    """Return a page's text with `lines` between the markers of a table."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = page.split(begin, 1)
    return "\n".join([f"{head}{begin}", *lines, end]) + rest.split(end, 1)[1]


def main() -> int:
    """Write every table."""
    for name, (page, make_lines) in TABLES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(replace_table(text, name, make_lines()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
