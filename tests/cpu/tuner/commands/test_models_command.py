"""`models`: which artefacts there are, what they hold, and that none but an installed one is removed."""

import json
from pathlib import Path

import pytest

from deep_gemm import selection, selector_files
from deep_gemm.artifact import read_artifact
from tests.fakes import selectors
from tuner import cli, errors

SKU = "nvidia-h200-sm132"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's model folder with a small artefact and its card; the packaged one for this SKU is shadowed."""
    (tmp_path / f"{SKU}.dgsel").write_bytes(selectors.make_artifact())
    (tmp_path / f"{SKU}.md").write_text("# card\n")
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path))
    monkeypatch.delenv("DG_SELECTOR", raising=False)
    selection.forget_selectors()
    yield tmp_path
    selection.forget_selectors()


@pytest.fixture
def run(capsys):
    """Run one command line of `models`; return (exit code, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run(["models", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_list_says_which_file_the_library_uses(folder, run):
    code, out, _ = run("list", "--json")
    found = json.loads(out)["models"]
    own, others = ([one for one in found if (one["sku"] == SKU) == is_own] for is_own in (True, False))
    assert code == 0 and [(one["place"], one["used"]) for one in own] == [("installed", "yes"), ("packaged", "no")]
    assert [(one["place"], one["used"]) for one in others] == [("packaged", "yes")]
    assert selector_files.read_selector_file(SKU, None)[0] == found[0]["file"] == str(folder / f"{SKU}.dgsel")
    assert "measured with other kernels" in found[0]["state"]  # the artefact of the test is of no kernel
    lines = run("list")[1].splitlines()
    assert lines[1].split()[:4] == [SKU, "yes", "installed", found[0]["created"]] and max(map(len, lines[:3])) <= 100


def test_list_shows_a_broken_file_with_its_fault(folder, run):
    (folder / f"{SKU}.dgsel").write_bytes(b"no artefact")
    (entry, *_) = json.loads(run("list", "--json")[1])["models"]
    assert entry["sku"] == SKU and entry["ops"] == 0 and entry["state"] not in ("", "fits") and entry["used"] == "no"
    code, _, err = run("show", "h200")
    assert code == errors.EXIT_INTEGRITY and str(folder) in err and err.count("\n") == 1


def test_nothing_is_used_with_the_heuristic_alone(folder, run, monkeypatch):
    monkeypatch.setenv("DG_SELECTOR", "analytic")
    assert {one["used"] for one in json.loads(run("list", "--json")[1])["models"]} == {"no"}


@pytest.mark.parametrize("name", ["h200", "H200", SKU])
def test_show_counts_what_the_artefact_holds(folder, run, name):
    code, out, _ = run("show", name, "--json")
    (op,) = json.loads(out)["ops"]
    arrays = read_artifact(selectors.make_artifact())[1]
    assert code == 0 and op["op"] == "fp8_gemm"
    assert (op["configs"], op["exact"]) == (len(arrays["fp8_gemm/configs"]), len(arrays["fp8_gemm/exact_key"]))
    text = run("show", name)[1]
    assert f"{folder / SKU}.dgsel (installed)" in text and "fp8_gemm" in text


def test_verify_replays_the_golden_vectors(folder, run):
    code, out, _ = run("verify", "h200", "--json")
    golden = len(read_artifact(selectors.make_artifact())[1]["fp8_gemm/golden_scores"])
    assert code == 0 and json.loads(out)["golden"] == golden > 0
    content = bytearray((folder / f"{SKU}.dgsel").read_bytes())
    content[-1] ^= 1
    (folder / f"{SKU}.dgsel").write_bytes(content)
    assert run("verify", "h200")[0] == errors.EXIT_INTEGRITY


def test_a_file_too_large_for_an_artefact_is_not_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", None)
    path = tmp_path / "large.dgsel"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    code, _, err = run("verify", str(path))
    assert code == errors.EXIT_INTEGRITY and f"has {1 << 40} bytes, an artefact at most" in err


def test_diff_counts_changes(folder, run, tmp_path):
    packaged = json.loads(run("list", "--json")[1])["models"][1]["file"]
    found = json.loads(run("diff", packaged, "h200", "--json")[1])["ops"]
    changes = {entry["op"]: entry["change"] for entry in found}
    assert changes["fp8_gemm"] == "changed" and changes["bf16_gemm"] == "removed"
    assert json.loads(run("diff", "h200", "h200", "--json")[1])["ops"][0]["change"] == "same"
    code, out, _ = run("diff", packaged, "h200")
    assert code == 0 and "removed" in out and ("  + fp8_gemm " in out or "  - fp8_gemm " in out)


def test_remove_takes_the_installed_one_and_its_card_alone(folder, run):
    code, out, _ = run("remove", "h200")
    assert code == 0 and out.count("removed ") == 2 and list(folder.iterdir()) == []
    code, _, err = run("remove", "h200")
    assert code == errors.EXIT_USAGE and "only installed ones are removed" in err
    assert selector_files.read_packaged_file(SKU) is not None


@pytest.mark.parametrize("form", ["{}/mine", "../other/mine", "mine/../../other/mine"])
def test_remove_stays_within_the_folder(folder, run, tmp_path_factory, monkeypatch, form):
    own = tmp_path_factory.mktemp("own")
    models, other = own / "models", own / "other"
    (models / "mine").mkdir(parents=True), other.mkdir()
    files = [other / name for name in ("mine.dgsel", "mine.md")]
    for path in files:
        path.write_text("not an installed artefact")
    monkeypatch.setenv("DG_MODEL_DIR", str(models))
    code, _, err = run("remove", form.format(other))
    assert code == errors.EXIT_USAGE and "only installed ones are removed" in err
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("arguments", [("show", "h20"), ("verify", "nope"), ("show", "none.dgsel"), ("diff", "h200")])
def test_unknown_names_are_usage_errors(folder, run, arguments):
    code, out, err = run(*arguments)
    assert code == errors.EXIT_USAGE and not out and err.count("\n") == 1
