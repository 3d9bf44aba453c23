"""Defects that are planted into the comparison of sweeps and of kernels; see run.py."""

from tests.mutation.defects import Defects

COMPARE_DEFECTS: Defects = {
    ("tuner/compare/blocks.py", "tests/cpu/tuner/compare/test_blocks.py"): [
        ("        if age(row) == newest[key]:\n", "        if True:\n"),
        ("is_confirmed(row) and is_own(row.block.regime)]", "is_confirmed(row)]"),
        ("in blocks.items() if len(pairs) >= MIN_CONFIGS}", "in blocks.items() if pairs}"),
        ("if pair.is_judged and load_of(pair.a) == load_of(pair.b)]", "if pair.is_judged]"),
        ("if pair.is_judged and load_of(pair.a) == load_of(pair.b)]", "if load_of(pair.a) == load_of(pair.b)]"),
        ("(loads or {}).get(", "{}.get("),
        ("min(first, second), key", "key"),
        ("min(first, second), key", "max(first, second), key"),
        ("return len(pair_rows(a[key], b[key])) >= MIN_CONFIGS, min", "return min"),
        (
            "    ordered = sorted(found, key=lambda key: max(map(age, found[key].values())))\n",
            "    ordered = list(found)\n",
        ),
    ],
    ("tuner/compare/recorded.py", "tests/cpu/tuner/compare/test_blocks.py"): [
        ("find_all(part, 0.0 if part.has_same_kernels else shift)", "find_all(part, shift)"),
        ("statistics.median(shifts) if len(shifts) >= MIN_PROBLEMS else 0.0", "0.0"),
        ("sum(1.0 / count for count in counts) / 2.0", "2.0"),
        ("Pair(first, second).log_ratio - shift, part", "Pair(first, second).log_ratio, part"),
        ("(row.problem_key, row.block_id): row.config_key", "(row.problem_key, 1): row.config_key"),
        (
            "take_confirmed(of_a), take_confirmed(of_b)",
            "take_confirmed(of_a, choose_loads(of_a, of_b)), take_confirmed(of_b, choose_loads(of_a, of_b))",
        ),
        ('or verdict == "faster"', "or True"),
        ('("config", "chosen") or len(finding.values) >= MIN_PROBLEMS', "() or True"),
        ("        and age(row) >= newest.get(", "        and age(row) > newest.get("),
        ("(row.status in FAILURES or is_quarantined(row))", "row.status in FAILURES"),
        (
            'return row.status == "skipped" and (row.error or "").startswith(QUARANTINED)',
            'return row.status == "skipped"',
        ),
        ('    if report["failing"] or "slower" in verdicts:\n', '    if "slower" in verdicts:\n'),
        ('    if report["problems"] < MIN_PROBLEMS:\n', "    if False:\n"),
    ],
    ("tuner/compare/noise.py", "tests/cpu/tuner/compare/test_blocks.py"): [
        ("            if len(common) < 2:\n", "            if len(common) < 3:\n"),
        ("math.sqrt(len(common) / (len(common) - 1.0))", "1.0"),
        ("[blocks[key] for key in sorted(blocks)]", "list(blocks.values())"),
        ("block.problem_key, block.workload, block.identity, block.board)", "block.problem_key, block.workload)"),
        ("max(-FAR, min(FAR, value))", "value"),
        ("len(values) // 2 + 1", "len(values) // 2"),
    ],
    ("tuner/compare/recorded.py", "tests/cpu/tuner/compare/test_noise.py"): [
        ('BY_MEAN = ("whole", "config")', 'BY_MEAN = ("whole",)'),
        ("narrow_own(noise, ratios), found_a", "noise, found_a"),
    ],
    ("tuner/compare/duel.py", "tests/cpu/tuner/compare/test_duel.py"): [
        ("max(MIN_DIFFERENCE, self.noise)", "MIN_DIFFERENCE"),
        ("[pair.test(sign, pair.fresh_from) for pair", "[pair.test(sign) for pair"),
        ('if side["status"] == "illegal"', "if False"),
        ("and is_same_host and not identical_too", "and not identical_too"),
        ("            if not pair.verdict:\n", "            if True:\n"),
        ("min(pair.test(1), pair.test(-1)) * 2.0", "min(pair.test(1), pair.test(-1)) * 200.0"),
        ("is_exact and not self.any_bits", "is_exact"),
    ],
    ("tuner/compare/suspects.py", "tests/cpu/tuner/compare/test_blocks.py"): [
        ('            if finding.verdict == "suspect":\n', '            if finding.verdict != "same":\n'),
        ("key=lambda pair: pair.a.median_us or 0.0)", "key=lambda pair: -(pair.a.median_us or 0.0))"),
        ('                finding.verdict = "slower"\n', '                finding.verdict = "same"\n'),
        ('elif finding.verdict == "suspect" and names & {"faster", "same"}:', 'elif finding.verdict == "suspect":'),
        ('(finding.kind != "pair" and finding.verdict != "suspect")', 'finding.verdict != "suspect"'),
    ],
}
