"""Recorded choices are compared with what the tree would choose."""

import hashlib

import pytest

from benchmarks import choice_regret, stale, stamp, today
from benchmarks.dense_fp8 import FAMILY
from benchmarks.stamp import write_json
from deep_gemm import _C

H200 = _C.Device.known("h200")
KEY = {"m": 64, "n": 2112, "k": 7168}
PINNED = "128x128x128 s5 c1x1 warp"  # of the exact table


def make_result(config: str, row_major: str | None = None, sku: str = H200.sku) -> dict:
    """Return a result of one row whose choices were these."""
    auto = {"config": config, "source": "exact"} | ({"row_major": row_major} if row_major else {})
    return {"meta": {"sku": sku}, "rows": [{**KEY, "choices": {"auto": auto}, "times": {}}]}


def choices() -> dict[str, str]:
    return {layout: today.name_call(problem, H200) for layout, problem in FAMILY.make_problems(KEY).items()}


def test_a_call_copies_row_major_scales_of_large_products_first():
    """So that it runs the kernel of the other layout."""
    large = FAMILY.make_problems({"m": 8192, "n": 4096, "k": 7168})["row_major"]
    assert large.scale_layout == "any" and _C.with_scale_copies(large).scale_layout == "mn_major"
    assert today.name_call(large, H200) == today.name_call(_C.with_scale_copies(large), H200) == PINNED
    small = choices()["row_major"]
    assert small == str(today.load_packaged(H200.sku).choose(FAMILY.make_problems(KEY)["row_major"], H200).config)


def test_rows_that_failed_and_results_of_choices_are_read():
    failed = make_result("none")
    failed["rows"][0]["choices"] = {}
    assert today.count_changed("dense_fp8.json", failed) == 0
    problem = choice_regret.draw()[0]
    row = {"problem": problem.key, "selector": {"config": today.name_choice(problem, H200)}}
    result = {"meta": {"sku": H200.sku, "seed": choice_regret.SEED}, "rows": [row]}
    assert today.count_changed("choice_regret.json", result) == 0
    row["selector"]["config"] = "another"
    assert today.count_changed("choice_regret.json", result) == 1


def test_a_row_with_todays_choices_is_current_and_any_other_is_not():
    now = choices()
    result = make_result(now["mn_major"], now["row_major"])
    assert today.count_changed("dense_fp8.json", result) == 0 and today.get_reason("dense_fp8.json", result) is None
    for changed in (make_result("64x256x128 s2 c1x1", now["row_major"]), make_result(now["mn_major"], "8x8x128 s2")):
        assert today.get_reason("dense_fp8.json", changed).startswith("1 of 1 problems have another choice now")


def test_both_tiles_of_a_call_are_compared_and_the_config_alone_of_a_sweep():
    problem = _C.Problem("m_grouped_bf16_gemm_masked", 4096, 4096, 4096, num_groups=1, expected_m=512)
    first, _, second = today.name_call(problem, H200).partition(" or ")
    assert second and first == today.name_choice(problem, H200)
    names = {"dtype": "bf16", "load": "uniform", "num_groups": 1, "max_m": 4096, "mean_m": 512, "sum_m": 500}
    row = names | {"n": 4096, "k": 4096, "choices": {"auto": {"config": f"{first} or {second}"}}}
    result = {"meta": {"sku": H200.sku}, "rows": [row]}
    assert today.count_changed("m_grouped_masked.json", result) == 0
    row["choices"]["auto"]["config"] = first
    assert today.count_changed("m_grouped_masked.json", result) == 1


@pytest.mark.parametrize("file, sku", [("host_time.json", H200.sku), ("dense_fp8.json", "another-gpu-sm100")])
def test_what_has_no_choices_of_a_known_gpu_is_not_judged(file, sku):
    assert today.get_reason(file, make_result("none", sku=sku)) is None


def test_a_board_with_a_lower_power_limit_is_judged_by_what_chooses_for_it():
    limited = _C.Device.known("h200-500w")
    now = {layout: today.name_call(one, limited) for layout, one in FAMILY.make_problems(KEY).items()}
    assert now == choices() and any(now[one] != str(_C.get_analytic_config(two, limited))
                                    for one, two in FAMILY.make_problems(KEY).items())  # fmt: skip
    path = stamp.find_packaged(H200.sku)
    assert path == stamp.find_packaged(limited.sku) and path.name == f"{H200.sku}.dgsel"
    record = {"sku": limited.sku, stamp.SELECTOR: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert stale.get_selector_reason(record) is None
    assert stale.get_selector_reason(record | {stamp.SELECTOR: "0" * 64})


def test_without_an_artefact_the_heuristic_chooses(monkeypatch):
    monkeypatch.setattr(today, "load_packaged", lambda sku: None)
    for layout, problem in FAMILY.make_problems(KEY).items():
        assert choices()[layout] == str(_C.get_analytic_config(problem, H200))


def test_the_command_fails_where_a_choice_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(today, "RECORDS", tmp_path)
    monkeypatch.setattr(today, "ROOT", tmp_path)
    monkeypatch.setattr(today, "name_call", lambda problem, device: "new")
    (tmp_path / "h200").mkdir()
    for config, code, said in (("new", 0, "0 of 1"), ("old", 1, "1 of 1")):
        write_json(tmp_path / "h200" / "dense_fp8.json", make_result(config))
        assert today.main() == code and f"{said} rows have another choice now" in capsys.readouterr().out
