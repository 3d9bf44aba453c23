"""The page of `report`: one file, every picture there, no script errors, and nothing wider than a phone."""

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.databases import CONFIGS
from tests.fakes.sweeps import run_sweep
from tuner import cli, errors
from tuner.problems import shapes
from tuner.report.page import SECTIONS

pytest.importorskip("matplotlib")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390
#: Appended to a copy of the page: what it measures of itself becomes the page.
PROBE = """<script>
const faults = [];
window.addEventListener("error", event => faults.push(event.message));
window.addEventListener("load", () => {
  const frame = document.scrollingElement;
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const sizes = [...document.querySelectorAll("figure svg")].map(one => one.getBoundingClientRect());
  document.title = JSON.stringify({faults, width: innerWidth, scroll: frame.scrollWidth, page:
    getComputedStyle(document.body).backgroundColor, pictures: sizes.map(one => [one.width, one.height])});
});
</script></body>"""
#: A window of a given width: headless browsers refuse windows as narrow as a phone.
FRAME = '<!DOCTYPE html><title>-</title><iframe src="{page}" style="width:{width}px;height:800px;border:0"></iframe>'


class Structure(html.parser.HTMLParser):
    """Reads which elements a page has, and what it refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.count: dict[str, int] = {}
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        named = dict(attributes)
        self.links += [named[name] for name in ("href", "src", "xlink:href") if named.get(name)]
        self.ids += [named["id"]] if "id" in named else []


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a small simulated sweep, with the README's pictures."""
    folder = tmp_path_factory.mktemp("report")
    problems = [problem for problem in shapes.load_preset("default") if (problem.n, problem.k) == (2112, 7168)][:6]
    run_sweep(folder / "tuning.db", problems, configs=CONFIGS[:8])
    assert cli.run(["report", "--db", str(folder / "tuning.db"), "--out", str(folder / "report.html")]) == 0
    return folder / "report.html"


def test_the_page_is_one_file_with_every_picture(page):
    text = page.read_text(encoding="utf-8")
    found = Structure(text)
    assert not [link for link in found.links if not link.startswith("#")] and "@import" not in text
    assert not re.findall(r"url\((?!#)", text) and "script" not in found.count
    assert set(SECTIONS) <= set(found.ids) and len(found.ids) == len(set(found.ids))
    # speed, regret out of fold, curve, roofline, noise, one weight's M-sweep and heat map
    assert found.count["figure"] == found.count["svg"] == 7
    assert 'role="img"' in text and "prefers-color-scheme: dark" in text and "var(--main)" in text
    assert "Negative regret" in text and "nothing to compare with" in text


def ask_browser(page: Path, width: int, folder: Path) -> dict:
    """Return what the page says of itself in a window of this width."""
    probed, framed = folder / "probed.html", folder / "framed.html"
    probed.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    script = (
        "<script>onload = () => { document.title = document.querySelector('iframe').contentDocument.title; }</script>"
    )
    framed.write_text(FRAME.format(page=probed.name, width=width) + script, encoding="utf-8")
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900", "--dump-dom", framed.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr[-1000:]
    return json.loads(html.unescape(title[1]))


@pytest.mark.full
@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("width", [PHONE, 1200])
def test_a_browser_shows_it_without_errors_or_scrolling(page, tmp_path, width):
    found = ask_browser(page, width, tmp_path)
    assert found["faults"] == [] and found["width"] == width
    assert found["scroll"] <= width
    assert len(found["pictures"]) == 7
    assert all(0.5 * PHONE < wide <= width and high > 60 for wide, high in found["pictures"])


def test_a_folder_is_no_page(page, tmp_path, capsys):
    assert cli.run(["report", "--db", str(page.with_name("tuning.db")), "--out", str(tmp_path)]) == errors.EXIT_USAGE
    assert capsys.readouterr().err.endswith("is a folder; name a file in it\n")


def test_no_page_replaces_a_database(page, capsys):
    database = page.with_name("tuning.db")
    before = database.read_bytes()
    assert cli.run(["report", "--db", str(database), "--out", str(database)]) == errors.EXIT_USAGE
    assert "is a database, which would be lost" in capsys.readouterr().err and database.read_bytes() == before


def test_an_op_kind_without_rows_is_inconclusive(page, tmp_path, capsys):
    database = str(page.with_name("tuning.db"))
    arguments = ["report", "--db", database, "--op", "bf16_gemm", "--out", str(tmp_path / "a.html")]
    assert cli.run(arguments) == errors.EXIT_INCONCLUSIVE
    assert not (tmp_path / "a.html").exists() and "bf16_gemm" in capsys.readouterr().err
