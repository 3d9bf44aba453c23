"""Defects that are planted into what sweeps on several boards and new exact tables go through; see run.py."""

from tests.mutation.defects import Defects

BOARD_DEFECTS: Defects = {
    ("tuner/learn/recorded_configs.py", "tests/cpu/tuner/search/test_best_again.py"): [
        ("must_confirm=found, ", ""),
        ("resume=False", "resume=True"),
        ("found[problem] = ranked[:count]", "found[problem] = ranked"),
        ("(state != CONFIRMED, value, str(config), config)", "(False, value, str(config), config)"),
        ("(state != CONFIRMED, value, str(config), config)", "(state != CONFIRMED, -value, str(config), config)"),
        ("if state >= SEARCHED and", "if"),
        ("kernel_hash(op), *own)", "kernel_hash(op), None, None)"),
        (", key=measured.__getitem__)", ", key=problems.index)"),
    ],
    ("tuner/learn/entries.py", "tests/cpu/tuner/learn/test_boards.py"): [
        ("[*found, *stand_ins]", "found"),
        ("and value.config not in searched", ""),
    ],
    ("tuner/ship/renewal.py", "tests/cpu/tuner/ship/test_renewal.py"): [
        ('ops[op] | {"quarantined": table.describe_quarantined()}', "ops[op]"),
        ("failed=[*data.failed, *unknown], ", ""),
        ("built=data.built | built", "built=data.built"),
        ("if config not in {*data.configs, *data.failed}", ""),
        ('    if metadata["stale"]:\n', "    if False:\n"),
        ('part["kernel_hash"], None, part["regime"]', 'part["kernel_hash"], None, None'),
    ],
    ("tuner/ship/exact_table.py", "tests/cpu/tuner/ship/test_renewal.py"): [
        ("if key not in known}", "}"),
        (" | self.kept\n", "\n"),
        ("most_common(MAX_CONFIGS - len(table.configs))", "most_common()"),
    ],
    ("tuner/ship/model_card.py", "tests/cpu/tuner/ship/test_renewal.py"): [
        ("elif _EXACT.match(line) and op in contents.ops:", "elif False:"),
        ("if _SIZE.match(line):", "if False:"),
    ],
    ("tuner/commands/export.py", "tests/cpu/tuner/ship/test_renewal.py"): [
        ("    if not base_card:\n", "    if False:\n"),
        ("refuse_simulated(kept | {data", "refuse_simulated({data"),
    ],
}  # fmt: skip
