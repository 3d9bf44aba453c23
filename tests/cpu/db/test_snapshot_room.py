"""What a snapshot leaves out where its rows do not fit."""

import re
import time
from collections import Counter

import pytest

from deep_gemm import _C
from tests.fakes.databases import SKU, add_block, add_context, make_problem
from tuner import cli, errors
from tuner.db import Store, publish, snapshot
from tuner.db.transfer import load_tables


def test_older_kernels_that_do_not_fit_are_left_out_and_named(tmp_path, capsys):
    """The op kind with most rows loses its older kernels first; the newest ones never go."""
    path, target = tmp_path / "all.db", tmp_path / "published.db"
    with Store.open(path) as store:
        context = add_context(store)
        for kernel_hash in ("89", "cd"):
            fields = {"kernel_hash": kernel_hash * 32, "num_configs": 70}
            for m in range(1, 9):
                add_block(store, context, make_problem(m), **fields)
            add_block(store, context, _C.Problem("bf16_gemm", 64, 2112, 7168), op="bf16_gemm", **fields)
            time.sleep(0.002)
    whole = snapshot(path, target, sku=SKU)
    target.unlink()
    words = ["db", "snapshot", str(target), "--db", str(path), "--sku", "h200", "--max-bytes"]
    assert cli.run([*words, str(whole["bytes"] - 1)]) == 0
    shown = capsys.readouterr().out
    assert "left out" in shown and re.search(r"fp8_gemm +89898989 +576", shown) and "bf16_gemm" not in shown
    found = {(row["problem_id"], row["kernel_hash"]) for row in load_tables(target)["block"].values()}
    assert len(found) == 8 + 2 and target.stat().st_size < whole["bytes"]
    with pytest.raises(errors.IntegrityError, match="at most 1000"):
        snapshot(path, tmp_path / "small.db", sku=SKU, max_bytes=1000)


def test_what_cannot_fit_is_never_read(tmp_path, monkeypatch):
    """By the number of rows alone older kernels are left out, and a snapshot is refused that no size would do for."""
    path, target, read = tmp_path / "all.db", tmp_path / "published.db", []
    with Store.open(path) as store:
        context = add_context(store)
        for kernel_hash in ("89", "cd"):
            for m in range(1, 9):
                add_block(store, context, make_problem(m), kernel_hash=kernel_hash * 32, num_configs=70)
            time.sleep(0.002)
        counted = len(store.load_measurements(kernel_hash="cd" * 32))
    read_rows = publish.read_measurements_of
    monkeypatch.setattr(publish, "read_measurements_of", lambda *args: read.append(args[3]) or read_rows(*args))
    monkeypatch.setattr(publish, "LEAST_ROW_BYTES", 10_000)
    result = snapshot(path, target, sku=SKU, max_bytes=10_000 * counted)
    assert len(read) == 1 and len(read[0]) == result["tables"]["block"] == 8
    assert [each["kernel_hash"] for each in result["left_out"]] == ["89" * 32]
    read.clear()
    for sku in (SKU, None):
        with pytest.raises(errors.IntegrityError, match=f"more than .* bytes, at most {4000 * counted}"):
            snapshot(path, tmp_path / "small.db", sku=sku, max_bytes=4000 * counted)
    assert not read and not (tmp_path / "small.db").exists()


def test_search_rows_of_confirmed_configs_go_where_the_newest_kernels_do_not_fit(tmp_path):
    path = tmp_path / "all.db"
    with Store.open(path) as store:
        context = add_context(store)
        for m in range(1, 81):
            add_block(store, context, make_problem(m))
    whole = snapshot(path, tmp_path / "whole.db", sku=SKU)
    snapshot(path, tmp_path / "small.db", sku=SKU, max_bytes=whole["bytes"] - 1)
    rows, fewer = (load_tables(tmp_path / name)["measurement"] for name in ("whole.db", "small.db"))
    confirmed = {key[:2] for key in rows if key[2] == "confirm"}
    assert confirmed and rows.keys() - fewer.keys() == {key for key in rows if key[:2] in confirmed} - {
        key for key in rows if key[2] == "confirm"
    }
    assert all(fewer[key] == rows[key] for key in fewer)


def test_as_few_op_kinds_as_need_be_lose_their_search_rows(tmp_path, capsys):
    path, small = tmp_path / "all.db", tmp_path / "small.db"
    sizes = {"fp8_gemm": 80, "bf16_gemm": 60, "batched_bf16_gemm": 30}
    with Store.open(path) as store:
        context = add_context(store)
        for op, count in sizes.items():
            groups = {"num_groups": 4} if op.startswith("batched") else {}
            for m in range(1, count + 1):
                add_block(store, context, _C.Problem(op, m, 2112, 7168, **groups), op=op)
    whole = snapshot(path, tmp_path / "whole.db", sku=SKU)
    before = count_searches(tmp_path / "whole.db")
    words = ["db", "snapshot", str(small), "--db", str(path), "--sku", "h200", "--max-bytes"]
    limit, gone = whole["bytes"] - 1, []
    for op in ("batched_bf16_gemm", "bf16_gemm"):  # without the rows of the first it is one byte too large, too
        assert cli.run([*words, str(limit)]) == 0
        found, shown, gone = count_searches(small), capsys.readouterr().out, [*gone, op]
        assert {name for name in before if found[name] < before[name]} == set(gone)
        assert all(re.search(rf"{name} +searches of", shown) for name in gone)
        limit = small.stat().st_size - 1
        small.unlink()


def count_searches(path) -> Counter:
    """Return how many search rows a database has of each op kind."""
    found = load_tables(path)
    blocks, problems = found["block"], found["problem"]
    return Counter(
        problems[(blocks[(block,)]["problem_id"],)]["op"] for block, _, role in found["measurement"] if role == "search"
    )
