"""What was measured of kernels whose machine code a change left as it was."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from joblib import parallel_config

from benchmarks import same_code, stale
from benchmarks.stamp import RECORDS
from deep_gemm import _C
from deep_gemm.jit import cubin, generator, hashing, nvrtc

K_MAJOR = frozenset({"k k"})
MIXED = frozenset({"k k", "k mn"})


def change(before: str, now: str, op: str = "bf16_gemm", **fields) -> dict:
    kernels = {"k k": 4, "k mn": 4, "mn mn": 2}
    return {"op": op, "before": before, "now": now, "kernels": kernels, "differ": {}, "gone": {}} | fields


@pytest.fixture
def changes(monkeypatch):
    """Two changes: the first one leaves all code as it was, the second one that of K-major operands."""
    found = [
        change("a", "b"),
        change("b", "c", differ={"k mn": 2, "mn mn": 1}),
        change("x", "c", op="fp8_gemm", gone={"k k": 1}),
    ]
    monkeypatch.setattr(same_code, "read_changes", lambda: found)
    return found


@pytest.mark.parametrize("layouts, reaches", [(K_MAJOR, True), (frozenset(), True), (MIXED, False), (None, False)])
def test_what_holds_after_a_change_of_some_layouts(changes, layouts, reaches):
    assert same_code.holds("bf16_gemm", "b", "c", layouts) is reaches
    assert same_code.holds("bf16_gemm", "a", "c", layouts) is reaches
    assert same_code.holds("bf16_gemm", "a", "b", layouts)


def test_nothing_holds_without_a_comparison(changes):
    assert not same_code.holds("bf16_gemm", "z", "c", K_MAJOR)
    assert not same_code.holds("batched_bf16_gemm", "b", "c", K_MAJOR)
    assert not same_code.holds("bf16_gemm", "c", "b", K_MAJOR)  # never back
    # A kernel that the generator writes differently speaks for its layouts.
    assert not same_code.holds("fp8_gemm", "x", "c", K_MAJOR) and not same_code.holds("fp8_gemm", "x", "c", None)
    assert same_code.holds("fp8_gemm", "x", "c", frozenset({"k mn"}))


def test_where_grids_differ_products_of_few_rows_do_not_hold(changes):
    changes[0]["grids"] = [1, 2]
    assert same_code.holds("bf16_gemm", "a", "c", K_MAJOR) and same_code.holds("bf16_gemm", "b", "c", K_MAJOR, True)
    assert not same_code.holds("bf16_gemm", "a", "c", K_MAJOR, has_few=True)


def test_records_say_whether_they_have_products_of_few_rows(tmp_path):
    folder = RECORDS / "h200"
    few = {
        name: same_code.find_few(folder / f"{name}.json", "fp8_gemm")
        for name in ("dense_fp8", "wgrad_fp8", "scale_copies", "evaluation", "tuned_models", "host_time", "callers")
    }
    assert [name for name, has in few.items() if has] == ["dense_fp8", "evaluation", "tuned_models"]
    assert not same_code.find_few(folder / "evaluation.json", "k_grouped_fp8_gemm_contiguous")
    (tmp_path / "a.json").write_text('{"rows": [{"m": 65}, {"m": 64}]}')
    (tmp_path / "b.json").write_text('{"rows": [{"m": 65}]}')
    assert [same_code.find_few(tmp_path / name, "bf16_gemm") for name in ("a.json", "b.json")] == [True, False]


def test_layouts_that_were_not_compared_do_not_hold(changes):
    changes[0]["kernels"] = {"k k": 4}
    assert same_code.holds("bf16_gemm", "a", "b", K_MAJOR) and not same_code.holds("bf16_gemm", "a", "b", MIXED)
    for kernels in ({}, {"k k": 4, "k mn": 0}):
        changes[0]["kernels"] = kernels
        assert not same_code.holds("bf16_gemm", "a", "b", MIXED) and not same_code.holds("bf16_gemm", "a", "b", None)


def test_products_onto_c_are_known_apart_from_others(changes):
    """Changes that counted them with the others say the same of both."""
    with_c = frozenset({"k k", "k k accumulate"})
    assert same_code.holds("bf16_gemm", "a", "b", with_c) and same_code.holds("bf16_gemm", "b", "c", with_c)
    changes[1] = change("b", "c", kernels={"k k": 4, "k k accumulate": 3}, differ={"k k accumulate": 1})
    assert same_code.holds("bf16_gemm", "a", "c", K_MAJOR) and not same_code.holds("bf16_gemm", "a", "c", with_c)
    problems = [_C.Problem("bf16_gemm", 8, 64, 64, d_dtype="fp32", c_mode=mode) for mode in ("none", "accumulate")]
    assert set(map(same_code.name_layouts, problems)) == with_c


def test_a_later_comparison_takes_the_place_of_an_earlier_one(changes):
    again = change("a", "b", differ={"k k": 1})
    found = same_code.replace(changes, again)
    assert found == [again, *changes[1:]] and same_code.replace(found, change("a", "c"))[:3] == found


def test_every_family_is_compared_at_least_once():
    cases = generator.canonical_cases("bf16_gemm")
    families = {same_code.name_family(*case) for case in cases}
    for every in (1, 7, len(cases)):
        places = same_code.draw(cases, every)
        assert {same_code.name_family(*cases[place]) for place in places} == families and len(set(places)) == len(
            places
        )
    assert same_code.draw(cases, 1) == list(range(len(cases))) and len(places) == len(families)
    assert any(problem.compiled_dims for problem, _ in map(cases.__getitem__, places))


@pytest.fixture
def older(tmp_path, monkeypatch):
    """An older package that is this one: {"hashes", "rules", "grids"} say in what it differs."""
    told = {"hashes": {}, "rules": {"abi": 1}, "grids": {}}
    monkeypatch.setattr(same_code, "make_set", lambda clone, name: SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr(
        same_code, "ask_hashes", lambda old, ops: {op: told["hashes"].get(op, hashing.kernel_hash(op)) for op in ops}
    )
    sources = {op: [(text, ["k", "k", "none"]) for text in generator.canonical_sources(op)] for op in ("bf16_gemm",)}
    summed = generator.canonical_sources("summed_bf16_gemm")
    sources["summed_bf16_gemm"] = [(text, ["mn", "mn", "none"]) for text in summed if "64x8x64" not in text]
    sources["summed_bf16_gemm"].append(("a source of before", ["mn", "mn", "accumulate"]))
    monkeypatch.setattr(
        same_code,
        "ask",
        lambda folder, ops: {
            "rules": told["rules"] if folder == tmp_path else {"abi": 1},
            "grids": told["grids"] if folder == tmp_path else {},
            "sources": sources,
        },
    )
    monkeypatch.setattr(same_code, "read_changes", list)
    include = tmp_path / "deep_gemm" / "include"
    shutil.copytree(same_code.ROOT / "deep_gemm" / "include", include)
    return told, include


def test_a_comparison_is_written_and_nothing_to_compare_fails(older, tmp_path, capsys, monkeypatch):
    told, include = older
    draw = same_code.draw
    monkeypatch.setattr(same_code, "draw", lambda cases, every: draw(cases, every)[:2])
    out, words = tmp_path / "same.json", ["08329c4e", "--every", "1000", "--out", str(tmp_path / "same.json")]
    assert same_code.main(words) == 1 and not out.exists() and "no kernel hash differs" in capsys.readouterr().err
    told["hashes"] = {"summed_bf16_gemm": "0" * 64}
    (include / "deep_gemm/sm90/ptx/unused.cuh").write_text("#error nobody includes this\n")
    with parallel_config(backend="sequential"):  # starting processes takes longer than so few kernels
        assert same_code.main(words) == 0
    (found,) = json.loads(out.read_text())["changes"]
    assert "grids" not in found
    assert sum(found["kernels"].values()) == 2 < found["families"]
    assert found["compiler"] == f"NVRTC {nvrtc.get_nvrtc().version_text}", "another one may make other code"
    assert (found["differ"], found["neither"], found["before"]) == ({}, 0, "0" * 64)
    added = sum("64x8x64" in text for text in generator.canonical_sources("summed_bf16_gemm"))
    assert found["gone"] == {"mn mn accumulate": 1} and found["added"] == added > 0
    told["grids"] = {"summed_bf16_gemm": 3}
    with parallel_config(backend="sequential"):
        assert same_code.main(words) == 0
    assert json.loads(out.read_text())["changes"][-1]["grids"] == [3, 1]
    name = next(iter(hashing.get_included_headers(generator.canonical_sources("summed_bf16_gemm")[0])))
    (include / name).write_text("#error as it was\n")
    with (
        parallel_config(backend="sequential"),
        monkeypatch.context() as patch,
    ):  # processes would not see the other root
        patch.setattr(same_code, "ROOT", tmp_path)
        assert same_code.main(words) == 1
    assert "kernels do not compile: " in capsys.readouterr().err
    told["rules"] = {"abi": 2}
    assert same_code.main(words) == 1 and "flags or arguments differ" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        same_code.main(["08329c4e", "--every", "0"])


def test_a_record_stays_current_with_the_code_of_its_layouts(changes, monkeypatch):
    monkeypatch.setattr(stale, "current_kernel_hash", lambda op="": "c")
    monkeypatch.setattr(same_code, "find_layouts", lambda path, op: K_MAJOR if path.name == "a.json" else MIXED)
    monkeypatch.setattr(same_code, "find_few", lambda path, op: False)
    recorded = {"bf16_gemm": "b"}
    assert stale.holding_hashes(Path("a.json"), recorded) == recorded
    assert stale.holding_hashes(Path("b.json"), recorded) == {"bf16_gemm": "c"}


def test_records_say_which_layouts_they_are_of():
    folder = RECORDS / "h200"
    assert same_code.find_layouts(folder / "dense_fp8.json", "fp8_gemm") == K_MAJOR
    assert same_code.find_layouts(folder / "dense_bf16.json", "bf16_gemm") == {"k k", "k mn", "mn k", "mn mn"}
    assert same_code.find_layouts(folder / "evaluation.json", "k_grouped_bf16_gemm_contiguous") == {
        "mn mn",
        "mn mn accumulate",
    }
    assert same_code.find_layouts(folder / "host_time.json", "bf16_gemm") == frozenset()
    assert same_code.find_layouts(folder / "callers.json", "bf16_gemm") is None


def test_a_comparison_tells_a_change_of_the_code_from_one_of_comments(tmp_path):
    problem, config = _C.Problem("bf16_gemm", 128, 256, 512), _C.Config(64, 64, 2, block_k=64)
    source = generator.generate_source(problem, config)
    for name, text in hashing.get_included_headers(source).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("// as before\n" + text)
    assert same_code.is_same(source, tmp_path)
    ring = tmp_path / "deep_gemm/sm90/mainloop/loader.cuh"
    assert "kMostPrefilled = 6;" in ring.read_text()
    ring.write_text(ring.read_text().replace("kMostPrefilled = 6;", "kMostPrefilled = 1;"))
    assert not same_code.is_same(source, tmp_path)


def test_machine_code_is_read_from_the_image():
    problem, config = _C.Problem("bf16_gemm", 128, 256, 512), _C.Config(64, 64, 2, block_k=64)
    source = generator.generate_source(problem, config)
    image = nvrtc.get_nvrtc().compile(source, hashing.get_included_headers(source)).image
    assert len(image) > len(cubin.read_code(image)) > 1000
    with pytest.raises(cubin.CubinError, match="100 bytes"):
        cubin.read_code(image[:100])


@pytest.mark.full
def test_kernels_of_two_tiles_are_compared_as_those_of_an_op_kind(tmp_path):
    """Of the older set their sources are asked for, too."""
    cases, sources = same_code.list_kernels(hashing.SECOND_TILE)
    assert len(cases) == len(sources) == 2 and all("takes_second<" in source for source in sources)
    told = same_code.ask(same_code.ROOT, [hashing.SECOND_TILE])["sources"][hashing.SECOND_TILE]
    assert told == [[source, ["k", "k", "none"]] for source in sources]
    found = same_code.compare(hashing.SECOND_TILE, told, same_code.ROOT / "deep_gemm" / "include", 1)
    assert found["kernels"] == {"k k": 2} and not found["differ"] and not found["gone"]


def test_the_comparison_covers_what_a_record_needs():
    """Every layout of the op kinds whose kernels are the tree's, but for those that a change wrote anew since."""
    document = json.loads(same_code.PROOF.read_text())
    assert all(change["compiler"].startswith("NVRTC ") for change in document["changes"])
    current = [one for one in document["changes"] if one["now"] == hashing.kernel_hash(one["op"])]
    assert current and {one["op"] for one in current} <= set(same_code.NAMES)
    for one in current:
        names = {same_code.name_layouts(problem) for problem, _ in same_code.list_kernels(one["op"])[0]}
        layouts = same_code.as_counted(one, names)
        assert set(one["kernels"]) == layouts and all(one["kernels"].values())
        assert sum(one["kernels"].values()) + one["neither"] >= one["families"] and one["neither"] <= 1
        assert set(one["differ"]) | set(one["gone"]) <= layouts and len(one["before"]) == len(one["now"]) == 64
