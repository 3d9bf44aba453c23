"""JSON that callers and other users wrote, nested far too deeply or of another kind: one line and exit code 2."""

import json

import pytest

from deep_gemm import _C
from deep_gemm.errors import ProblemError
from tuner import cli, errors
from tuner.db import import_json

HOSTILE = {
    "deep list": "[" * 100_000,
    "deep object": '{"a":' * 100_000,
    "deep problems": '{"problems":' + "[" * 100_000,
    "number": "7",
    "text": '"\\u001b[2J"',
    "nothing": "null",
    "list of numbers": "[1, 2]",
    "many digits": "9" * 5000,
    "escape": "\x1b[2J",
}


@pytest.mark.parametrize("flag", ["--shapes", "--configs"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_none_is_a_usage_error(tmp_path, capsys, flag, name):
    path = tmp_path / "\x1b[31m.json"
    path.write_text(HOSTILE[name])
    preset = [] if flag == "--shapes" else ["--preset", "demo"]
    assert cli.run(["sweep", "--dry-run", *preset, flag, str(path)]) == errors.EXIT_USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said[:-1].isprintable() and len(said) < 2200


@pytest.mark.parametrize("name", HOSTILE)
def test_the_description_of_a_problem(name):
    with pytest.raises(ProblemError):
        _C.Problem.from_json(HOSTILE[name])
    with pytest.raises(ProblemError):
        _C.Problem.from_json(json.dumps({"fields": HOSTILE[name], "op": "fp8_gemm"}))


@pytest.mark.parametrize("named", ["x" * 5000, "\x1b[2J"])
def test_text_of_an_export_is_never_shown_raw_or_at_length(tmp_path, named):
    path = tmp_path / "rows.json"
    for document in ({"application": named, "format": named, "tables": {}}, {"application": named}):
        path.write_text(json.dumps(document))
        with pytest.raises(errors.IntegrityError) as caught:
            import_json(tmp_path / "new.db", path)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
