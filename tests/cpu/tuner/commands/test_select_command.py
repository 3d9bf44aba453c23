"""`select`: what it shows is what the run time does, with and without an artefact, and without a GPU."""

import itertools
import json
import math
import os
import re

import pytest

import deep_gemm
from deep_gemm import _C, selection, sm100
from deep_gemm.fields import OP_KINDS
from deep_gemm.older_kernels import list_serving
from tests.fakes import databases, selectors
from tuner import cli
from tuner.commands import tables
from tuner.commands.select import describe_measured
from tuner.db import Store
from tuner.db.publish import snapshot
from tuner.problems.fields import OPS, PROBLEM_DEFAULTS, default_fields, legal_words, read_op_name
from tuner.ship import selection as ship_selection

SKU = "nvidia-h200-sm132"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install an artefact whose kernels are this package's, and return its problems."""
    (tmp_path / f"{SKU}.dgsel").write_bytes(selectors.make_artifact())
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(selection, "kernel_hash", lambda op: selectors.KERNEL_HASH)
    selection.forget_selectors()
    yield selectors.make_parts()[3]
    selection.forget_selectors()


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Make the heuristic the only one to choose."""
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    selection.forget_selectors()
    yield
    selection.forget_selectors()


def run(capsys, *arguments):
    """Run `select` and return (exit code, standard output, standard error)."""
    code = cli.run(["select", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def shape(problem):
    """Return a problem's sizes as arguments."""
    return problem.m, problem.n, problem.k


def test_it_shows_the_run_times_choice(installed, capsys):
    for problem in (
        installed[0],
        installed[50],
        _C.Problem("fp8_gemm", 64, 2112, 7168),
        _C.Problem("fp8_gemm", 5, 7, 11),
    ):
        code, text, _ = run(capsys, *shape(problem), "--device", "h200", "--json")
        choice = selection.explain(problem, _C.Device.known("h200"))
        found = json.loads(text)
        assert code == 0 and found["config"] == choice.config.as_dict()
        assert (found["source"], found["reason"]) == (choice.source, choice.reason)
        assert found["problem"] == problem.as_dict() and found["predicted_us"] > 0


def test_an_exact_answer_still_shows_the_scores(installed, capsys):
    found = json.loads(run(capsys, *shape(installed[0]), "--device", SKU, "--json")[1])
    scored = selection.get_selector(selectors.DEVICE).choose_learned(installed[0], selectors.DEVICE).scores
    assert found["source"] == "exact" and len(found["scores"]) == sum(map(math.isfinite, scored.values())) > 1
    assert [entry["score"] for entry in found["scores"]] == sorted(entry["score"] for entry in found["scores"])


def test_it_explains_guards_and_scores(installed, capsys):
    code, text, _ = run(capsys, *shape(installed[60]), "--device", "h200", "--explain")
    assert code == 0 and "heuristic's pick" in text and "gain above 1.0%" in text
    assert text.endswith("  same GPU model: yes, fits this package: yes\n")
    assert f"selector: {os.environ['DG_MODEL_DIR']}/{SKU}.dgsel\n" in text


@pytest.mark.filterwarnings("ignore::deep_gemm.errors.SelectorWarning")
def test_it_names_the_guard_that_refuses(installed, monkeypatch, capsys):
    monkeypatch.setattr(selection, "kernel_hash", lambda op: "ab" * 32)
    code, text, _ = run(capsys, *shape(installed[60]), "--device", "h200", "--explain")
    assert code == 0 and "analytic" in text
    assert text.endswith("fits this package: NO: measured with other kernels (kernel hash differs)\n")
    assert (
        "no selector is used for this problem: measured with other kernels" in text
        and f"{SKU}.dgsel, which is not used" in text
    )


@pytest.mark.filterwarnings("ignore::deep_gemm.errors.SelectorWarning")
def test_lines_are_short_also_where_the_reason_is_long(monkeypatch, capsys):
    monkeypatch.setenv("DG_SELECTOR", "/no/such/folder/for/selectors/nvidia-h200-sm132.dgsel")
    selection.forget_selectors()
    text = run(capsys, 64, 2112, 7168, "--device", "h200")[1]
    selection.forget_selectors()
    assert (
        "no such file; set DG_SELECTOR" in " ".join(text.split())
        and len(text.splitlines()) > 2
        and max(map(len, text.splitlines())) <= tables.WIDTH
    )


def test_without_an_artefact_the_heuristic_answers(without, capsys):
    problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
    code, text, _ = run(capsys, 64, 2112, 7168, "--device", "h100", "--explain")
    assert code == 0 and str(_C.get_analytic_config(problem, _C.Device.known("h100"))) in text and "no selector" in text
    assert json.loads(run(capsys, 64, 2112, 7168, "--device", "h100", "--json")[1])["selector"] is None


def test_the_number_of_sms_is_part_of_the_problem(without, capsys):
    problem = _C.Problem("fp8_gemm", 4096, 4096, 4096, num_sms=20)
    found = json.loads(run(capsys, 4096, 4096, 4096, "--num-sms", 20, "--device", "h200", "--json")[1])
    assert found["problem"] == problem.as_dict() and found["name"] == str(
        _C.get_analytic_config(problem, _C.Device.known("h200"))
    )


def test_every_field_of_a_problem_is_an_option(without, capsys):
    device = _C.Device.known("h200")
    gradient = _C.Problem("fp8_gemm", 4096, 4096, 7168, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    arguments = ["--recipe", "1d1d", "--d-dtype", "fp32", "--c-mode", "accumulate"]
    found = json.loads(run(capsys, 4096, 4096, 7168, *arguments, "--device", "h200", "--json")[1])
    assert found["problem"] == gradient.as_dict() and found["name"] == str(_C.get_analytic_config(gradient, device))
    other = _C.Problem("bf16_gemm", 64, 512, 1024, a_major="mn", b_major="mn", batch_invariant=True)
    arguments = ["--op", "bf16_gemm", "--a-major", "mn", "--b-major", "mn", "--batch-invariant"]
    found = json.loads(run(capsys, 64, 512, 1024, *arguments, "--device", "h200", "--json")[1])
    assert found["problem"] == other.as_dict() and found["config"] == _C.get_analytic_config(other, device).as_dict()
    assert (
        json.loads(run(capsys, 64, 512, 1024, "--scale-layout", "any", "--device", "h200", "--json")[1])["problem"][
            "scale_layout"
        ]
        == "any"
    )


def test_an_op_kind_that_the_artefact_does_not_know(installed, capsys):
    code, text, _ = run(capsys, 64, 2112, 7168, "--op", "bf16_gemm", "--device", "h200", "--explain")
    assert code == 0 and text.count("does not know this op kind") == 2
    assert (
        "no selector is used for this problem: the selector does not know this op kind" in text
        and "selector:" not in text
        and f"used for {SKU}" not in text
    )


def test_a_predicted_time_says_whose_it_is(installed, capsys):
    seen = set()
    for problem in (installed[0], installed[60], _C.Problem("fp8_gemm", 5, 7, 11)):
        first, *rest = run(capsys, *shape(problem), "--device", "h200", "--explain")[1].splitlines()
        found = json.loads(run(capsys, *shape(problem), "--device", "h200", "--json")[1])
        choice = selection.explain(problem, _C.Device.known("h200"))
        is_scored = bool(choice.scores) and choice.config in choice.scores
        assert (
            found["predicted_by"] == ("trees" if is_scored else "heuristic")
            and found["heuristic"]["predicted_by"] == "heuristic"
        )
        if choice.source == "exact":  # an estimate beside what was measured would only contradict it
            assert " us" not in first
        else:
            assert first.count("the trees' prediction" if is_scored else "the heuristic's estimate") == 1
        text = "\n".join(rest)
        assert "times: this problem was not measured with these kernels" in text
        assert ("no selector is used" in text) == ("which is not used" in text) == (found["source"] == "analytic")
        seen.add(found["source"])
    assert "exact" in seen and len(seen) > 1


@pytest.fixture
def measured(installed, tmp_path):
    """A database in which the exact table's choice is faster than the heuristic's pick, and its problem."""
    device = _C.Device.known("h200")
    choices = ((one, selection.explain(one, device), _C.get_analytic_config(one, device)) for one in installed)
    problem, chosen, pick = next(
        (one, found.config, pick) for one, found, pick in choices if found.source == "exact" and found.config != pick
    )
    other = next(one for one in _C.get_candidates(problem, device) if one not in (chosen, pick))
    configs = list(dict.fromkeys([pick, chosen, other]))
    path = tmp_path / "measured.db"
    with Store.open(path) as store:
        context = databases.add_context(store) | {"kernel_hash": selectors.KERNEL_HASH}
        ids = [store.get_or_add_config(problem.op, config) for config in configs]
        fields = {"problem_id": store.get_or_add_problem(problem), "reference_config_id": ids[0]}
        block = store.add_block(context | fields)
        rows = [
            {"block_id": block, "config_id": one, "role": "search", "status": "ok", "median_us": 20.0 - place}
            | {"ratio": 1.0 - place / 20.0}
            for place, one in enumerate(ids)
        ]
        rows[-1] |= {"status": "censored", "median_us": 40.0, "ratio": 2.0}
        store.add_measurements(rows, finish=True)
    return path, problem, configs


def test_measured_times_are_shown_and_decide_the_order(measured, capsys):
    path, problem, (pick, chosen, other) = measured
    arguments = (*shape(problem), "--device", "h200", "--db", path, "--explain")
    first, _, *lines = run(capsys, *arguments)[1].splitlines()
    found = json.loads(run(capsys, *arguments, "--json")[1])["measured"]
    assert (found["database"], found["reference"]) == (str(path), str(pick))
    assert found["configs"][str(other)] == {"median_us": 40.0, "ratio": 2.0, "is_bound": True}
    assert first.startswith(f"{chosen}  (exact: measured best)  19.00 us measured")
    assert lines[0].startswith(str(chosen)) and lines[0].split("  ")[-1] == "chosen (exact)" and "19.00" in lines[0]
    assert lines[1].startswith(str(pick)) and lines[1].removeprefix(str(pick)).split()[:2] == ["20.00", "1.000"]
    assert lines[1].endswith("heuristic's pick, reference")
    table = list(itertools.takewhile(lambda line: not line.startswith(("...", "us, ratio:")), lines))
    assert len(table) > 3 and max(map(len, table)) <= 100
    assert all(">40.00" in line for line in table if line.startswith(f"{other} "))


def test_a_snapshot_still_says_how_slow_a_dropped_config_is_at_least(measured, capsys, tmp_path):
    path, problem, (_, _, other) = measured
    snapshot(path, tmp_path / "snapshot.db")
    arguments = (*shape(problem), "--device", "h200", "--db", tmp_path / "snapshot.db", "--explain")
    found = json.loads(run(capsys, *arguments, "--json")[1])["measured"]["configs"][str(other)]
    assert found == {"median_us": None, "ratio": 2.0, "is_bound": True} and describe_measured(found) == ("-", ">2.000")
    assert run(capsys, *arguments)[0] == 0


def test_the_packaged_choice_is_never_called_slower_than_what_it_replaces(monkeypatch, capsys):
    """On the recorded sweep: the choice, with its time, is at most 1 % behind the first line, the measured best."""
    monkeypatch.delenv("DG_MODEL_DIR", raising=False)
    selection.forget_selectors()
    text = run(capsys, 64, 2112, 7168, "--device", "h200", "--explain")[1]
    first, _, *rows = text.splitlines()
    assert "(exact: measured best)" in first and " us measured" in first and "about" not in first
    best, chosen = (
        float(re.split("  +", row)[2]) for row in (rows[0], next(row for row in rows if "chosen (exact)" in row))
    )
    assert best <= chosen <= 1.01 * best < 1.0  # the table leaves its few kernels for a gain of more than 1 % only
    selection.forget_selectors()


def test_times_of_older_kernels_are_said_to_be_so(monkeypatch, capsys):
    """Where the present ones have none; rows of kernels that do not choose for them are never shown."""
    monkeypatch.delenv("DG_MODEL_DIR", raising=False)

    def explain(*hashes: str) -> str:
        monkeypatch.setattr(ship_selection, "list_serving", lambda op, kernel_hash: list(hashes))
        return run(capsys, 64, 2112, 7168, "--device", "h200", "--explain")[1]

    serving = list_serving("fp8_gemm", selection.kernel_hash("fp8_gemm"))
    recorded = next(hash_ for hash_ in serving if " us measured" in explain(hash_))
    said = {"own": explain(recorded), "older": explain("0" * 64, recorded), "none": explain("0" * 64)}
    assert " us measured" in said["older"] and said["older"].count(" with older kernels\n") == 1
    assert " us measured" in said["own"] and "older kernels" not in said["own"]
    assert "this problem was not measured with these kernels" in said["none"] and " us measured" not in said["none"]


def test_batch_invariance_is_the_librarys_unless_it_is_named(without, monkeypatch, capsys):
    monkeypatch.setattr(_C, "is_batch_invariant", lambda op: True)
    arguments = (64, 512, 1024, "--device", "h200", "--json")
    assert json.loads(run(capsys, *arguments)[1])["problem"]["batch_invariant"] is True
    named = json.loads(run(capsys, *arguments, "--no-batch-invariant")[1])
    assert named["problem"].get("batch_invariant", False) is False


def test_words_and_devices_are_taken_in_any_case(without, capsys):
    arguments = ("--recipe", "1D1D", "--d-dtype", "FP32", "--device", "H200", "--json")
    found = json.loads(run(capsys, 64, 512, 1024, *arguments)[1])
    assert found["problem"]["recipe"] == "1d1d" and found["sku"] == SKU


def test_the_version_is_that_of_the_package(capsys):
    assert cli.run(["--version"]) == 0 and capsys.readouterr().out == f"deep_gemm {deep_gemm.__version__}\n"


def list_needed(op):
    """Return the arguments that an op kind takes no default of: its sizes, groups, heads and pages."""
    kind = OP_KINDS[op]
    if not kind.is_logits:
        return [512, 4096, 4096, *(["--num-groups", 8] if kind.is_grouped else [])]
    return [512, 4096, 128, "--heads", 32, *(["--block-kv", 64] if kind.is_paged else [])]


@pytest.mark.parametrize("op", OPS)
def test_an_op_kinds_only_legal_values_are_its_defaults(without, capsys, op):
    arguments = [*list_needed(op), "--op", op, "--device", "h200", "--no-batch-invariant"]
    code, text, error = run(capsys, *arguments, "--json")
    assert code == 0, error
    changed = {
        name: value
        for name, value in json.loads(text)["problem"].items()
        if value != PROBLEM_DEFAULTS[name] and name not in ("op", "m", "n", "k", "num_groups", "heads", "block_kv")
    }
    assert changed == default_fields(op)
    assert (changed["d_dtype"] == "fp32") if OP_KINDS[op].is_logits else True, "as their functions return"
    for name in changed:  # else only what has no other legal value differs from other op kinds
        if PROBLEM_DEFAULTS[name] in legal_words(op, name):
            continue
        flag = f"--{name.replace('_', '-')}"
        assert run(capsys, *arguments, flag, PROBLEM_DEFAULTS[name])[0] == 2


@pytest.mark.parametrize(
    ("name", "op", "fields"),
    [
        ("fp8_gemm_tn", "fp8_gemm", {}),
        ("fp8_gemm_nt_skip_head_mid", "fp8_gemm", {"c_mode": "head_split"}),
        ("bf16_gemm_nt", "bf16_gemm", {}),
        ("bf16_gemm_nn", "bf16_gemm", {"b_major": "mn"}),
        ("bf16_gemm_tn", "bf16_gemm", {"a_major": "mn", "b_major": "mn"}),
        ("bf16_gemm_tt", "bf16_gemm", {"a_major": "mn"}),
        ("m_grouped_fp8_gemm_nt_masked", "m_grouped_fp8_gemm_masked", {}),
        ("bf16_m_grouped_gemm_nt_masked", "m_grouped_bf16_gemm_masked", {}),
        ("m_grouped_bf16_gemm_nn_contiguous", "m_grouped_bf16_gemm_contiguous", {"b_major": "mn"}),
        (
            "k_grouped_fp8_gemm_nt_contiguous",
            "k_grouped_fp8_gemm_contiguous",
            {"recipe": "1d1d", "d_dtype": "fp32", "group_layout": "blocks"},
        ),
        ("k_grouped_fp8_gemm_tn_contiguous", "k_grouped_fp8_gemm_contiguous", {"recipe": "1d1d", "d_dtype": "fp32"}),
        (
            "k_grouped_bf16_gemm_tn_contiguous",
            "k_grouped_bf16_gemm_contiguous",
            {"a_major": "mn", "b_major": "mn", "d_dtype": "fp32"},
        ),
    ],
)
def test_a_functions_name_stands_for_its_problem(without, capsys, name, op, fields):
    groups = 8 if OP_KINDS[op].is_grouped else 0
    arguments = (512, 4096, 4096, "--op", name, "--num-groups", groups, "--device", "h200", "--json")
    found = json.loads(run(capsys, *arguments)[1])
    fields = fields | {"batch_invariant": op == "bf16_gemm"}  # what a call without a setting asks for
    assert found["problem"] == _C.Problem(op, 512, 4096, 4096, num_groups=groups, **fields).as_dict()


def test_every_product_has_an_op_kind_and_a_flag_goes_before_a_name(without, capsys):
    names = {name for name in deep_gemm.__all__ if "_gemm_" in name and not name.startswith("cublaslt")}
    for name in names - set(sm100.EXPORTS):
        assert read_op_name(name)[0] in OPS
    found = json.loads(
        run(capsys, 64, 512, 1024, "--op", "bf16_gemm_nn", "--b-major", "k", "--device", "h200", "--json")[1]
    )
    assert found["problem"]["b_major"] == "k"


@pytest.mark.parametrize(
    "name", ["fp8_gemm_xy", "m_grouped_fp8_gemm_tt_masked", "cublaslt_gemm_nt", "per_block_cast_to_fp8", "fp8", ""]
)
def test_an_unknown_op_kind_says_the_rule(without, capsys, name):
    code, _, error = run(capsys, 64, 512, 1024, "--op", name)
    assert (
        code == 2
        and f"--op {name}: " in error
        and "the op kind is the function's name without _nt, _nn, _tn" in error
        and "use one of fp8_gemm, " in error
    )


def test_no_gpu_means_the_recorded_model_of_gpu(without, monkeypatch, capsys):
    def refuse(*_):
        from deep_gemm.errors import DeviceError

        raise DeviceError("no driver")

    monkeypatch.setattr(_C, "get_device", refuse, raising=False)
    assert json.loads(run(capsys, 64, 2112, 7168, "--json")[1])["sku"] == SKU


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 1),
        (1, 1, 2**31),
        (1, 1),
        ("a", 1, 1),
        (1, 1, 1, "--device", "b200"),
        (1, 1, 1, "--num-sms", "-1"),
        (0, 1, 1, "--op", "m_grouped_fp8_gemm_masked", "--num-groups", "4", "--expected-m", "8"),
        (1, 1, 1, "--op", "x"),
        (1, 1, 1, "--recipe", "x"),
        (1, 1, 1, "--a-major", "mn"),
    ],
)
def test_wrong_arguments_are_usage_errors_in_one_line(without, capsys, arguments):
    code, text, error = run(capsys, *arguments)
    assert code == 2 and not text and error.count("\n") == 1 and "Traceback" not in error


def test_a_run_loads_the_called_command_alone(without, capsys, monkeypatch):
    loaded = []
    make_app = cli.make_app
    monkeypatch.setattr(cli, "make_app", lambda names: make_app(loaded.append(names) or names))
    run(capsys, 64, 512, 1024)
    run(capsys, 64, 512, 1024)
    assert loaded == [{"select"}] * 2
