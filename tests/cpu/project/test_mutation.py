"""The planted defects of tests/mutation fit the tree: each names a text that is there once, and tests that exist."""

from pathlib import Path

from tests.mutation.run import list_defects

ROOT = Path(__file__).parents[3]


def test_every_defect_can_be_planted():
    defects = list(list_defects(is_native=True))
    assert len(defects) >= 100
    for defect in defects:
        text = (ROOT / defect.file).read_text(encoding="utf-8")
        assert text.count(defect.old) == 1, f"{defect.file}: {defect.old!r} is there {text.count(defect.old)} times"
        assert defect.new != defect.old and all((ROOT / test).is_file() for test in defect.tests), defect
