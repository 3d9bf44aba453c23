"""`compare` of two artefacts: which recorded problems get another config, and what recorded times expect of it."""

import json
from xml.etree import ElementTree

import pytest

from deep_gemm import _C
from deep_gemm.selector_files import SUFFIX
from tests.fakes import selectors
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.commands.compare import ARTEFACT
from tuner.ship import changes

H200 = _C.Device.known("h200")
PROBLEMS = [_C.Problem("fp8_gemm", m, 4096, 7168) for m in (64, 128, 192)]
CONFIGS = [config for config in selectors.make_portfolio(8) if all(_C.is_legal(one, config, H200) for one in PROBLEMS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a swept database; all configs but the last one are measured to the end."""
    path = tmp_path_factory.mktemp("changes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deep_gemm.jit.hashing.kernel_hash", lambda op: selectors.KERNEL_HASH)
        run_sweep(path / "a.db", PROBLEMS, configs=CONFIGS[:-1], sentinels=False)
    return path


def write_artefact(path, chosen: dict) -> str:
    """Write an artefact whose exact table has these configs; return its name."""
    metadata, arrays, _, _ = selectors.make_parts()
    places = {config: index for index, config in enumerate(selectors.make_portfolio(8))}
    entries = [(problem, places[config]) for problem, config in chosen.items()]
    path.write_bytes(selectors.pack(metadata, arrays | selectors.exact_arrays(entries)))
    return str(path)


def measured(folder) -> dict:
    """Return {config: ratio} of the first problem, the confirmed one where there are two."""
    rows = [row for row in read_all(folder / "a.db")[0] if row.block.problem == PROBLEMS[0] and row.status == "ok"]
    return {row.config: row.ratio for row in sorted(rows, key=lambda row: row.role == "confirm")}


@pytest.fixture
def times(folder) -> dict:
    """Times of the first problem, the fastest config first."""
    return dict(sorted(measured(folder).items(), key=lambda item: item[1]))


def run(folder, capsys, first: dict, second: dict, *more: str) -> tuple[int, str, str]:
    """Compare two artefacts; return exit code, output and errors."""
    names = write_artefact(folder / "first.dgsel", first), write_artefact(folder / "second.dgsel", second)
    code = cli.run(["compare", *names, "--db", str(folder / "a.db"), *more])
    return code, *capsys.readouterr()


def test_slower_choices_are_named_with_what_they_cost(folder, times, capsys):
    fast, *_, slow = times
    same = {PROBLEMS[1]: fast, PROBLEMS[2]: fast}
    code, out, err = run(folder, capsys, {PROBLEMS[0]: fast} | same, {PROBLEMS[0]: slow} | same, "--json")
    report = json.loads(out)
    (part,), (change,) = report["ops"], report["ops"][0]["changes"]
    assert code == errors.EXIT_FAILURE == report["exit_code"] and "slower choices" in err
    assert (part["problems"], part["changed"], part["measured"], part["slower"]) == (3, 1, 1, 1)
    assert change["ratio"] == pytest.approx(times[slow] / times[fast]) == part["ratio"]
    assert part["whole"] == pytest.approx(part["ratio"] ** (1 / 3))
    assert (change["a"]["name"], change["b"]["name"], change["b"]["source"]) == (str(fast), str(slow), "exact")


def test_the_other_way_round_is_faster_and_the_same_is_the_same(folder, times, capsys):
    fast, *_, slow = times
    chosen = [dict.fromkeys(PROBLEMS, config) for config in (slow, fast)]
    code, out, _ = run(folder, capsys, *chosen)
    assert code == errors.EXIT_OK and out.splitlines()[5].split()[-1] == "faster"
    assert max(map(len, out.splitlines()[4:])) <= 100 and f"{slow} -> {fast}" in out
    code, out, _ = run(folder, capsys, chosen[0], chosen[0], "--json")
    (part,) = json.loads(out)["ops"]
    assert code == errors.EXIT_OK and part["verdict"] == "same" and part["whole"] == 1.0 and not part["changes"]


def test_what_was_not_measured_is_not_guessed(folder, times, capsys):
    code, out, err = run(
        folder, capsys, dict.fromkeys(PROBLEMS, next(iter(times))), dict.fromkeys(PROBLEMS, CONFIGS[-1]), "--json"
    )
    (part,) = json.loads(out)["ops"]
    assert code == errors.EXIT_INCONCLUSIVE and "without recorded times" in err
    assert (part["verdict"], part["measured"], part["ratio"]) == ("unknown", 0, None)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ((("fp8_gemm",), ("fp8_gemm", "bf16_gemm")), "A has no such op kind"),
        ((("fp8_gemm", "bf16_gemm"), ("fp8_gemm",)), "B has no such op kind"),
        ((("fp8_gemm", "bf16_gemm"),) * 2, "no recorded times"),
    ],
)
def test_an_op_kind_that_cannot_be_compared_is_unknown(folder, capsys, ops, reason):
    names = []
    for side, own in zip("ab", ops, strict=True):
        path = folder / f"{side}.dgsel"
        path.write_bytes(selectors.make_joined_artifact(*own))
        names.append(str(path))
    command = ["compare", *names, "--db", str(folder / "a.db")]
    assert cli.run([*command, "--json"]) == errors.EXIT_INCONCLUSIVE
    parts = {part["op"]: part for part in json.loads(capsys.readouterr().out)["ops"]}
    assert parts["fp8_gemm"]["verdict"] == "same" and parts["fp8_gemm"]["reason"] is None
    assert (parts["bf16_gemm"]["verdict"], parts["bf16_gemm"]["reason"]) == ("unknown", reason)
    for form in ("table", "markdown", "junit"):
        assert cli.run([*command, "--format", form]) == errors.EXIT_INCONCLUSIVE
        assert reason in capsys.readouterr().out
    assert cli.run([*command, "--op", "fp8_gemm"]) == errors.EXIT_OK
    assert cli.run([*command, "--op", "bf16_gemm"]) == errors.EXIT_INCONCLUSIVE
    assert cli.run([*command, "--op", "nope"]) == errors.EXIT_USAGE


def test_only_one_block_has_both_times(folder):
    """Times of different blocks are never divided by each other."""
    first, second = CONFIGS[:2]
    assert changes.find_ratio([{first: 1.0}, {second: 2.0}], first, second) is None
    assert changes.find_ratio([{first: 1.0}, {first: 2.0, second: 3.0}], first, second) == 1.5


def test_other_formats(folder, times, capsys):
    fast, *_, slow = times
    chosen = [dict.fromkeys(PROBLEMS, config) for config in (fast, slow)]
    assert f"| {slow} |" in run(folder, capsys, *chosen, "--format", "markdown")[1]
    suite = ElementTree.fromstring(run(folder, capsys, *chosen, "--format", "junit")[1])
    assert suite.get("failures") == "1" == suite.get("tests")
    code, _, err = run(folder, capsys, *chosen, "--format", "html")
    assert code == errors.EXIT_USAGE and "--format" in err


def test_the_suffix_is_that_of_the_library():
    assert ARTEFACT == SUFFIX


def test_what_cannot_be_compared_is_a_usage_error(folder, capsys):
    name = write_artefact(folder / "first.dgsel", {})
    for words, said in (
        ([name, str(folder / "a.db")], "not one of each"),
        ([str(folder / "a.db"), "--db", str(folder / "a.db")], "only for two artefacts"),
        ([name, str(folder / "absent.dgsel")], "no such file"),
    ):
        assert cli.run(["compare", *words]) == errors.EXIT_USAGE and said in capsys.readouterr().err
