"""Comments, docstrings, help and error texts and pages keep to the words of docs/glossary.md."""

import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.db import tables

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "docs" / "glossary.md"
#: Device headers keep their prose until kernels are measured again; model cards and the change log are history.
UNCHECKED = ("deep_gemm/include/", "models/", "CHANGELOG.md", "docs/glossary.md", "tests/cpu/project/test_glossary.py")
#: Names of DeepGEMM's API, which are as they are.
GIVEN_NAMES = {"set_block_size_multiple_of", "routed_scaling_factor", "block_size"}
CPP_TEXT = re.compile(r'//[^\n]*|R"\((?:.|\n)*?\)"|"(?:[^"\\\n]|\\.)*"')
CODE_IN_PROSE = re.compile(r"```.*?^```|`[^`\n]+`|</?[a-z][^>]*>|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"\{[^{}\n]*\}")  # of an f-string


def table_rows() -> list[tuple[str, str]]:
    """Return (word, cell of phrases that must not be used for it) of every row of the glossary's tables."""
    rows = re.findall(r"^\| (.+?) \| .+? \|(.*)\|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if row[0] not in ("word", "---")]


@functools.cache
def banned_phrases() -> tuple[str, ...]:
    """Return the phrases that the glossary bans: of its tables, and of its last section."""
    style = GLOSSARY.read_text(encoding="utf-8").split("## Spelling and style", 1)[1]
    style = " ".join(style.split())
    lists = re.findall(r'not ((?:"[^"]+"(?:, )?)+)', style)
    return tuple(re.findall(r'"([^"]+)"', " ".join([cell for _, cell in table_rows()] + lists)))


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the comments and strings of a Python file; strings without a space are names."""
    strings = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))  # the latter from Python 3.12 on
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type in strings and " " in token.string:
            yield token.start[0], FIELD.sub(" ", token.string) if token.string[0] in "fF" else token.string


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of everything in a file that is written for people."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, text
    elif path.suffix == ".py":
        yield from python_prose(text)
    else:
        for match in CPP_TEXT.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def blank(match: re.Match) -> str:
    """Return as many line ends as a match has, so that line numbers stay."""
    return " " + "\n" * match[0].count("\n")


@functools.cache
def checked_prose() -> tuple[tuple[str, int, str], ...]:
    """Return (file, line, text without code) of every tracked source and page."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [name for name in names if name.endswith((".py", ".cpp", ".hpp", ".md")) and (ROOT / name).is_file()]
    return tuple(
        (name, line, CODE_IN_PROSE.sub(blank, text))
        for name in names
        if not name.startswith(UNCHECKED)
        for line, text in prose_of(ROOT / name)
    )


@functools.cache
def words_by_file() -> dict[str, str]:
    """Return the text of each file that checked_prose has, in lower case."""
    texts: dict[str, list[str]] = {}
    for name, _, text in checked_prose():
        texts.setdefault(name, []).append(text.lower())
    return {name: "\n".join(parts) for name, parts in texts.items()}


def pattern_of(phrase: str) -> re.Pattern:
    """Return a pattern for whole words, also in the plural and over line breaks, that is no part of a name or path."""
    words = r"\s+(?:(?://|#:?)\s*)?".join(re.escape(word) for word in phrase.split())
    ending = "" if phrase[-1] in ".," else r"(?:s|d|es)?(?![\w(/-]|\.\w)"
    return re.compile(rf"(?<![\w./-]){words}{ending}", re.IGNORECASE)


def uses_of(phrase: str) -> list[tuple[str, int]]:
    """Return (file, line) of every use of a phrase."""
    pattern, words = pattern_of(phrase), phrase.lower().split()
    files = {name for name, text in words_by_file().items() if all(word in text for word in words)}
    return [
        (name, line + text.count("\n", 0, match.start()))
        for name, line, text in checked_prose()
        if name in files
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("phrase", banned_phrases())
def test_no_word_is_used_against_the_glossary(phrase):
    wrong = [f"{name}:{line}" for name, line in uses_of(phrase)]
    assert not wrong, f"{phrase!r} is used against docs/glossary.md: {', '.join(wrong)}"


def names_of(phrase: str) -> re.Pattern:
    """Return a pattern for a phrase of several words in a name: thread_blocks, THREAD_BLOCK, kThreadBlock."""
    words = phrase.replace("-", " ").split()
    snake, camel = "_".join(words), "".join(word.capitalize() for word in words)
    return re.compile(rf"(?<![a-zA-Z])(?:{snake}s?|{snake.upper()}S?)(?![a-zA-Z])|{camel}s?(?![a-z])")


@functools.cache
def misnamed() -> frozenset[tuple[str, str, str]]:
    """Return (file, phrase, name) of every name that holds a banned phrase of several words."""
    patterns = {phrase: names_of(phrase) for phrase in banned_phrases() if " " in phrase}
    found = set()
    for name in {name for name, _, _ in checked_prose() if not name.endswith(".md")}:
        words = set(re.findall(r"\w+", (ROOT / name).read_text(encoding="utf-8"))) - GIVEN_NAMES
        found |= {(name, phrase, word) for word in words for phrase, at in patterns.items() if at.search(word)}
    return frozenset(found)


def test_no_name_is_used_against_the_glossary():
    assert not sorted(misnamed())
    assert names_of("thread block").search("num_thread_blocks") and names_of("thread block").search("kThreadBlock")


def test_every_word_has_one_entry():
    words = [word for word, _ in table_rows()]
    assert len(words) == len(set(words)) > 60


def test_the_tables_of_the_database_are_words_of_the_glossary():
    words = {word for word, _ in table_rows()}
    assert set(tables.metadata.tables) - {"alembic_version"} <= words


def test_a_banned_phrase_is_found():
    pattern = pattern_of("thread block")
    assert pattern.search("of each Thread\n# blocks") and not pattern.search("thread blocking, thread_block")
    assert "artifact" in banned_phrases() and pattern_of("artifact").search("the artifacts of a run")
    assert not pattern_of("artifact").search("csrc/selector/artifact.hpp") and "utilise" in banned_phrases()
