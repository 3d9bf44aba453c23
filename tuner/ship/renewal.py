"""New exact tables in an artefact whose trees stay: what another board's sweep changes is the choice for measured
problems, and to train again takes minutes.
"""

from dataclasses import replace

import numpy as np

from deep_gemm import _C
from deep_gemm.artifact import read_artifact
from deep_gemm.selector import split_quarantined
from tuner import errors
from tuner.db import Store
from tuner.learn.artifact import build_artifact
from tuner.learn.dataset import Dataset, choose_identity, load_dataset
from tuner.learn.portfolio import choose_portfolio
from tuner.learn.sources import find_ops
from tuner.ship.exact import to_config
from tuner.ship.exact_table import ExactTable, keep_entries, make_table, replay
from tuner.ship.export import Export
from tuner.ship.model_card import Contents, renew_counts


def load_tables(store: Store, metadata: dict, op: str) -> tuple[list[Dataset], dict[str, str]]:
    """Return the rows that renew an artefact with this metadata, of `op` or of every op kind, and {op kind: reason} of
    those left out. Raises: UsageError for an `op` that is left out, InconclusiveError where all are.
    """
    tables, left = [], {}
    for name in find_ops(store, metadata["sku"], op):
        part = metadata["ops"].get(name)
        identity = part and choose_identity(store, metadata["sku"], name, part["kernel_hash"], None, part["regime"])
        if not identity:
            left[name] = "no rows of its kernels and regime" if part else "not in the artefact"
            continue
        fields = {"kernel_hash": identity.kernel_hash, "compiler": identity.compiler, "regime": identity.regime}
        try:
            tables.append(load_dataset(store, metadata["sku"], op=name, **fields, with_older=True))
        except errors.InconclusiveError as error:
            left[name] = str(error)
    if op and left:
        raise errors.UsageError(
            f"--exact-only --op {op}: {left[op]}; train on its rows, and export without --exact-only"
        )
    if not tables:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise errors.InconclusiveError(
            f"--exact-only: nothing to renew by ({reasons}); sweep first, or name another --db"
        )
    return tables, left


def renew(base: bytes, card: str, tables: list[Dataset]) -> Export:
    """Return an artefact and its card with the exact tables of the op kinds of `tables`, all else as in `base`.

    Entries of problems that the tables lack stay, as far as there is room, and so does what was in quarantine and has
    no row. Raises: UsageError for an artefact that is stale; IntegrityError.
    """
    metadata, arrays = read_artifact(base)
    if metadata["stale"]:
        raise errors.UsageError(f"--keep: the artefact is marked as stale ({metadata['stale']}); export it anew")
    ops = dict(metadata["ops"])
    parts = {data.identity.op: take_part(arrays, data.identity.op) for data in tables}
    made = {
        data.identity.op: renew_table(data, parts[data.identity.op], ops[data.identity.op]["quarantined"])
        for data in tables
    }
    for op, table in made.items():
        ops[op] = ops[op] | {"quarantined": table.describe_quarantined()}
        arrays |= {f"{op}/{name}": array for name, array in table.to_arrays().items()}
    created = max(metadata["created"], *(data.newest[:10] for data in tables))
    content = build_artifact(metadata | {"ops": ops, "created": created}, arrays)
    selector = replay(content)
    for table in made.values():
        table.check(selector)
    contents = Contents(len(content), created, {op: table.count(parts[op]) for op, table in made.items()})
    num_lost = sum(table.num_lost for table in made.values())
    kept = tuple(op for op in ops if op not in made)
    return Export(content, renew_counts(card, contents), [], contents, kept, num_lost)


def take_part(arrays: dict[str, np.ndarray], op: str) -> dict[str, np.ndarray]:
    """Return the arrays of an op kind, without its prefix."""
    return {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{op}/")}


def renew_table(data: Dataset, part: dict[str, np.ndarray], quarantined: list) -> ExactTable:
    """Return the exact table of an op kind's data, with a portfolio chosen from all its problems, and with what the
    data do not speak of from `part`, whose metadata has `quarantined`.
    """
    before = [to_config(row) for row in part["configs"].tolist()]
    banned = {before[index]: variants for index, variants in map(split_quarantined, quarantined)}
    unknown = {config: variants for config, variants in banned.items() if config not in {*data.configs, *data.failed}}
    built = {config: {_C.Problem.from_json(text) for text in variants} for config, variants in unknown.items()}
    data = replace(data, failed=[*data.failed, *unknown], built=data.built | built)
    columns = choose_portfolio(data, np.arange(len(data.problems))).columns
    table = make_table(data, [data.configs[column] for column in columns])
    entries = zip(part["exact_key"].tolist(), part["exact_config"].tolist(), strict=True)
    return keep_entries(table, {key: before[index] for key, index in entries})
