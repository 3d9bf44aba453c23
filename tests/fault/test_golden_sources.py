"""The generated sources and all keys of 200 (problem, config) pairs are the same bytes in every process and release."""

import json
import os
import subprocess
import sys

import pytest

from deep_gemm import _C
from deep_gemm.jit import generator
from tests.data import regenerate_golden_sources as golden

REMEDY = "if the change was meant: python -m tests.data.regenerate_golden_sources"


def read_rows() -> list[dict]:
    return json.loads(golden.PATH.read_text(encoding="ascii"))


def test_sources_and_keys_are_golden():
    rows = read_rows()
    changed = [
        row["config"]
        for row in rows
        if golden.hash_pair(_C.Problem.from_json(row["problem"]), _C.Config.from_json(row["config"])) != row["hash"]
    ]
    assert len(rows) == golden.NUM_PAIRS and not changed, (
        f"{len(changed)} of {len(rows)} changed, first {changed[0]}; {REMEDY}"
    )


@pytest.mark.full  # the golden file is another process's too; this one differs in all that could matter
def test_another_process_gives_the_same(tmp_path):
    """Hash seed, locale, working folder and time zone of the process do not matter."""
    program = (
        "from tests.data import regenerate_golden_sources as golden; print(*(golden.hash_pair(*pair) for pair in"
        " golden.make_pairs()))"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "77",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert found == [golden.hash_pair(*pair) for pair in golden.make_pairs()]


def test_sizes_that_are_not_compiled_in_do_not_reach_the_source():
    config = golden.make_pairs()[0][1]
    sources = {generator.generate_source(_C.Problem(golden.OP, *shape), config) for shape in golden.SHAPES}
    assert len(sources) == 1


def test_pairs_are_distinct_and_cover_the_compiled_dims():
    pairs = golden.make_pairs()
    assert len({(problem, config) for problem, config in pairs}) == golden.NUM_PAIRS
    assert {problem.compiled_dims for problem, _ in pairs} == set(golden.COMPILED_DIMS)
