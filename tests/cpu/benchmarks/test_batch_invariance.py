"""What the benchmark of batch invariance derives from its rows."""

import pytest

from benchmarks import batch_invariance, harness
from deep_gemm import _C

SPLIT, PLAIN = str(_C.Config(64, 64, 5, split_k=8)), str(_C.Config(64, 128, 4))


def make_row(auto: str, times: dict[str, float], op: str = "fp8_gemm") -> dict:
    choices = {"auto": {"config": auto}, "invariant": {"config": PLAIN}}
    rounds = {name: [us] * 3 for name, us in times.items()}
    return {"op": op, "m": 1, "n": 576, "k": 7168, "choices": choices, "times": rounds}


@pytest.mark.parametrize(
    "auto, invariant_us, expected",
    [
        (SPLIT, 12.0, (1.2, 1.2, 2.0, 2.0 / 1.2)),
        (SPLIT, 8.0, (0.8, 0.8, 2.0, 2.5)),
        (str(_C.Config(64, 96, 5)), 12.0, (1.2, 1.0, 2.0, 2.0 / 1.2)),  # another choice, although auto's would do
        (PLAIN, 12.0, (1.0, 1.0, 2.0, 2.0)),  # the same config: the difference is noise
    ],
)
def test_costs(auto, invariant_us, expected, capsys):
    row = make_row(auto, {"cublaslt": 20.0, "auto nt": 10.0, f"{PLAIN} nt": invariant_us})
    assert batch_invariance.compare(row) == pytest.approx(expected)
    batch_invariance.print_costs([row, make_row(auto, {})])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["op", "m"], ["fp8_gemm", "1"], ["fp8_gemm", "all"]]
    assert float(lines[1].split()[2]) == pytest.approx(expected[0], abs=1e-3)


def test_problems():
    keys = batch_invariance.FAMILY.read_keys()
    assert len({batch_invariance.FAMILY.identify(key) for key in keys}) == len(keys) == 60
    assert all(batch_invariance.FAMILY.make_problems(key)["nt"].op == key["op"] for key in keys)


def test_the_table_is_that_of_the_file_that_out_names(tmp_path, monkeypatch, capsys):
    path = tmp_path / "costs.json"

    def measure(family, args):
        args.out.write_text('{"rows": []}', encoding="utf-8")
        return 3

    monkeypatch.setattr(harness, "run", measure)
    words = [f"--out={path}"]
    assert harness.main(batch_invariance.FAMILY, "", words, batch_invariance.print_costs) == 3
    assert "worst" in capsys.readouterr().out and path.exists()
