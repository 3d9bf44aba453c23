"""Write the generated tables: of the ops in README.md, of the measured figures in docs/performance.md, and of whole
models in docs/nn.md and docs/tune-your-model.md.

Example: python -m benchmarks.tables

A table stands between `<!-- name: begin -->` and `<!-- name: end -->`.
"""

import sys
from collections.abc import Callable

from deep_gemm import ops

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
    "S1": "selector, mean regret on left-out shape families",
    "S2": "share of the heuristic's regret that the selector removes there",
    "S3": "heuristic alone, mean regret",
    "S1_grouped": "selector for grouped products, mean regret on left-out shape families",
    "S2_grouped": "share of the heuristic's regret that it removes there",
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


#: Name of a table -> its page and what makes its lines.
TABLES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "ops": ("README.md", ops.make_table),
    "measured": ("docs/performance.md", lambda: make_measured_table(read_json(RESULTS / "summary.json"))),
    "h100": ("docs/performance.md", lambda: make_measured_table(read_json(RECORDS / "h100" / "summary.json"))),
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
