"""The model card: a Markdown page beside each artefact about its training data, its quality and its limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from deep_gemm.fields import OP_KINDS
from tuner.learn.evaluation import Evaluation, Statistics, Table
from tuner.learn.record import Record
from tuner.learn.validate import METHODS, SPLITS
from tuner.ship import gates

HEADINGS = (
    "choice",
    "mean (95 % interval)",
    "p95 (95 % interval)",
    "max",
    "within 2 %",
    "wins",
    "losses",
    "worst vs heuristic",
    "confirmed",
)


#: What begins the sections on an op kind.
_NEXT_OP = "\n## "
#: Lines that a renewal of exact tables changes, see renew_counts.
_SIZE, _EXACT = re.compile(r"\d+ bytes; dated [-\d]+;"), re.compile(r"- \d+ exact entries with \d+ configs")


@dataclass(frozen=True)
class Counts:
    """What an artefact holds of one op kind."""

    exact: int
    configs: int
    trees: int
    nodes: int
    golden: int


@dataclass(frozen=True)
class Contents:
    """What an artefact holds: its size, its date, and the counts of every op kind."""

    bytes: int
    created: str
    ops: dict[str, Counts]


@dataclass(frozen=True)
class CardPart:
    """What the card says about one op kind."""

    record: Record
    evaluation: Evaluation
    verdicts: list[gates.Verdict]
    counts: Counts

    @property
    def op(self) -> str:
        """Return the op kind."""
        return self.record.identity.op


def write_card(parts: list[CardPart], contents: Contents, kept: Mapping[str, str] | None = None) -> str:
    """Return the card of an artefact; `kept` are op kinds of the one before it, with the sections of its card."""
    first, kept = parts[0].record, kept or {}
    sections = [
        f"# Selector for {first.identity.sku}\n",
        describe_purpose([*(part.op for part in parts), *kept]),
        describe_file(first, contents),
    ]
    if kept:
        sections.append(f"As they were in the artefact before it: {', '.join(f'`{op}`' for op in kept)}.\n")
    for part in parts:
        sections += describe_op(part)
    return "\n".join([*sections, *filter(None, kept.values())])


def renew_counts(card: str, contents: Contents) -> str:
    """Return a card with the size, date and exact entries of `contents`: that of an artefact with new exact tables."""
    lines, op = card.split("\n"), ""
    for place, line in enumerate(lines):
        op = line.removeprefix("## ") if line.startswith("## ") else op
        if _SIZE.match(line):
            lines[place] = _SIZE.sub(f"{contents.bytes} bytes; dated {contents.created};", line)
        elif _EXACT.match(line) and op in contents.ops:
            lines[place] = f"- {describe_exact(contents.ops[op])}; renewed {contents.created}, after the trees"
    return "\n".join(lines)


def describe_exact(counts: Counts) -> str:
    """Return how many measured problems the artefact knows, and how many configs they share."""
    return f"{counts.exact} exact entries with {counts.configs} configs"


def find_section(card: str, op: str) -> str:
    """Return the sections of a card on one op kind, or one that says that it has none."""
    _, found, rest = card.partition(f"\n## {op}\n")
    text = rest.partition(_NEXT_OP)[0].strip() if found else "The artefact before had no card that says more."
    return f"## {op}\n\n{text}\n"


def describe_op(part: CardPart) -> list[str]:
    """Return the sections of one op kind."""
    return [
        f"## {part.op}\n",
        f"### Gates\n\n{describe_gates(part.verdicts)}",
        f"### Data\n\n{describe_data(part.record)}",
        f"### Validation\n\n{describe_validation(part.evaluation)}",
        f"### What the file holds\n\n{describe_contents(part.record, part.counts)}",
        f"### Limits\n\n{describe_limits(part.record, part.evaluation)}",
    ]


def describe_purpose(ops: list[str]) -> str:
    """Return what the artefact is for."""
    return (
        f"Chooses the kernel configuration of {' and '.join(f'`{op}`' for op in ops)} at run time: the measured best"
        " of a recorded problem, else the config with the smallest product of\nanalytic estimate and learned residual,"
        " else the analytic heuristic. It holds numbers only, can name legal configs only, and never changes a"
        " result.\n"
    )


def describe_file(record: Record, contents: Contents) -> str:
    """Return the size and the versions of the artefact."""
    versions = (
        f"features version {record.features_version}, heuristic version {record.heuristic_version}, package"
        f" {record.package_version}"
    )
    return f"{contents.bytes} bytes; dated {contents.created}; {versions}.\n"


def describe_gates(verdicts: list[gates.Verdict]) -> str:
    """Return the gates with their verdicts, and a warning where one was missed."""
    listed = to_list([gates.format_verdict(verdict) for verdict in verdicts])
    if gates.is_passed(verdicts):
        return listed
    return (
        f"{listed}\n**This selector missed a gate and was exported by force: compare it with the analytic heuristic"
        " (`DG_SELECTOR=analytic`) on your shapes.**\n"
    )


def describe_data(record: Record) -> str:
    """Return what was measured."""
    data, identity = record.data, record.identity
    facts = [
        (
            f"{data.problems} problems in {data.families} families of (n, k) and {data.values_of_m} values of"
            f" m{describe_sizes(identity.op)}"
        ),
        f"{data.full_space_problems} of them measured over the whole space; {data.configs} distinct configs",
        f"{data.timed} timed (problem, config) pairs, {data.confirmed} with confirmation rounds",
        f"variants: {format_counts(data.variants)}",
        f"shapes of: {', '.join(data.models) or 'no named model'}",
        *([f"{data.older} problems are of older kernels, whose rows serve"] if data.older else ()),
        (f"regime `{identity.regime}`, compiler `{identity.compiler}`, kernel hash `{identity.kernel_hash[:16]}`"),
        f"newest row {record.newest_row or 'undated'}",
        (
            f"quarantined configs: {', '.join(data.quarantined) or 'none'}; problems left out:"
            f" {format_counts(data.dropped)}"
        ),
    ]
    return to_list([*facts, f"learned from as well, at low weight: {record.prior}"] if record.prior else facts)


def describe_sizes(op: str) -> str:
    """Return what n, k and m stand for where an op kind has groups; "" for a dense one."""
    kind = OP_KINDS[op]
    if kind.k_is_divided:
        return " (of groups of K: m and n of D, and the K of one group on average)"
    if kind.is_batched or kind.is_summed:
        return " (of each product)"
    return (
        " (the rows expected in a group)" if kind.has_room else " (of one group on average)" if kind.m_is_shared else ""
    )


def to_list(facts: list[str]) -> str:
    """Return facts as a Markdown list."""
    return "".join(f"- {fact}\n" for fact in facts)


def format_counts(counts: dict) -> str:
    """Return `reason (count), ...`."""
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(counts.items())) or "none"


def describe_validation(evaluation: Evaluation) -> str:
    """Return one table per split, and over what they are."""
    settings = (
        " Each fold chose the settings of its trees by itself."
        if evaluation.nested
        else " The settings of the trees were not chosen again inside the folds."
    )
    intro = (
        "Regret is the chosen config's time over the best one's, minus 1, on problems measured over the whole space;"
        " the best is chosen on\nsearch rounds, the score comes from confirmation rounds where they exist. Each fold"
        " refits trees, guards and portfolio without the\nheld-out problems. Intervals resample families. A win or"
        " loss against the heuristic is a difference above 1 %; `confirmed` is the share of\nchoices that were scored"
        " on confirmation rounds."
        f" Figures are over {evaluation.seeds} seed{'s' if evaluation.seeds > 1 else ''} of the trees.{settings}\n"
    )
    tables = [intro]
    for split in SPLITS:
        table = evaluation.splits.get(split)
        if table:
            tables.append(f"{format_title(split, table)}.\n\n{format_table(table)}")
    return "\n".join(tables)


def format_table(table: Table) -> str:
    """Return one split's statistics as a Markdown table."""
    rows = [
        HEADINGS,
        ("---",) * len(HEADINGS),
        *(format_row(method, table[method]) for method in METHODS if method in table),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def format_row(method: str, statistics: Statistics) -> tuple[str, ...]:
    """Return one method's statistics as cells, in the order of HEADINGS."""
    return (
        METHODS[method],
        format_interval(statistics, "mean"),
        format_interval(statistics, "p95"),
        f"{statistics.max:.1%}",
        f"{statistics.within_2_percent:.0%}",
        str(statistics.wins),
        str(statistics.losses),
        f"{statistics.worst_against_heuristic:+.1%}",
        f"{statistics.confirmed:.0%}",
    )


def format_interval(statistics: Statistics, name: str) -> str:
    """Return a statistic with its interval."""
    low, high = getattr(statistics, f"{name}_interval")
    return f"{getattr(statistics, name):.2%} ({low:.2%} to {high:.2%})"


def format_title(split: str, table: Table) -> str:
    """Return what one split's table is about."""
    model = table["model"]
    removed = "" if model.removed is None else f"; it removes {model.removed:.0%} of the heuristic's regret"
    return (
        f"{SPLITS[split]}: {model.problems} problems of {model.families} families, {model.answered:.0%}"
        f" answered by the model{removed}"
    )


def describe_contents(record: Record, counts: Counts) -> str:
    """Return what the artefact holds and which versions it fits."""
    guards = record.guards
    facts = [
        describe_exact(counts),
        (
            f"{counts.trees} trees with {counts.nodes} nodes (boosted, seed {record.settings.seed}, scikit-learn"
            f" {record.sklearn_version})"
        ),
        f"{counts.golden} golden vectors",
        f"guard: a config must be predicted {guards.margin:.1%} (log time) faster than the heuristic's pick",
        f"guard: every feature must lie inside the training hull, widened by {guards.slack:.0%} of its extent",
    ]
    return to_list(facts)


def describe_limits(record: Record, evaluation: Evaluation) -> str:
    """Return what the figures do not show."""
    facts = [
        (
            f"Valid on `{record.identity.sku}` for kernels of this kernel hash, and for newer ones for which"
            " `deep_gemm/older_kernels.py` names it; elsewhere the run time ignores it."
        ),
        "A family is all variants of (n, k) together, so that no variant of a held-out shape is trained on.",
        "Measured in the regime above; other regimes (warm L2, launches that overlap) can prefer other configs.",
        (
            "The heuristic's constants are part of the package and were not refitted inside the folds; features contain"
            " its estimate. They were fitted to sweeps of the presets, many of the problems of these tables among them:"
            " the heuristic's figures are not out of sample."
        ),
        (
            "Problems measured with a few configs alone train the model and fill the exact table, but no regret is"
            " claimed on them."
        ),
    ]
    missing = evaluation.unconfirmed
    if missing.pairs:
        facts.append(
            f"{missing.pairs} picks of some fold or baseline, on {missing.problems} problems, are scored on"
            " search rounds, or on what is known of a config that was dropped, for want of confirmation."
        )
    return to_list(facts)
