"""compute-sanitizer's children: how a tool is started on what is watched, and how its output is read.

A child writes one line for everything that it begins and ends into the file that the tool reports into, so that a child
that is killed has said what it did, and a report stands behind the program during which it came:
    watched: {"event": "start", "total": programs of the run}
    watched: {"event": "begin", "program": name, "at": seconds since the epoch}
    watched: {"event": "end", "program": name, "op": op kind, "seconds": wall time, "failures": [text]}
    watched: {"event": "done"}, at the end of the list or of the time budget
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import NamedTuple

from .processes import holding_signals, kill_group, kill_groups, send_kill
from .record import make_section
from .world import ALL_OPS

#: `--report-api-errors no`: torch probes the driver for features it may not have; kernels are what is checked here.
#: racecheck watches our kernels alone, whose names all begin so: torch's would take most of the time.
TOOLS = {
    "memcheck": ["--print-limit", "20", "--report-api-errors", "no"],
    "synccheck": ["--print-limit", "20"],
    "racecheck": ["--print-limit", "200", "--kernel-name", "kns=deep_"],
}
#: Those that the suite runs. racecheck takes long, and knows asynchronous copies and barriers in shared memory in part:
#: what it reports of them must be judged.
DEFAULT_TOOLS = ("memcheck", "synccheck")
#: Children of a tool in the suite: each has a CPU core's worth of preparing to do.
PARTS = 3
#: A tool that takes longer hangs.
TIMEOUT_S = 400.0
#: A child that may stop begins no program when less than this is left: one may take some seconds, and then the tool
#: sums up.
LAST_S = 25.0
#: A program that has run longer than this when its child is killed hangs; one that has not could not end in time.
HANG_S = 60.0
#: What children whose time was up before they were waited for still have, all of them together.
LAST_CHANCE_S = 1.0
#: What a tool says at the end when it found nothing.
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "synccheck": "ERROR SUMMARY: 0 errors",
         "racecheck": "RACECHECK SUMMARY: 0 hazards"}  # fmt: skip
EVENT, REPORT = "watched: ", "========="
#: What a tool says that is no report.
NO_REPORTS = ("COMPUTE-SANITIZER", "SUMMARY", "Target application returned")
#: Characters of a report, and names of programs with it, that are kept.
MAX_TEXT, MAX_BESIDE = 2000, 5


class Output(NamedTuple):
    """What a child and its tool said.

    total: programs of the run. rows: those that ended. running, since: one that began and did not end, and when, in
    seconds since the epoch. reports: (text, program). is_done: the child came to its end. has_summed_up: the tool did.
    is_clean: it did and found nothing.
    """

    total: int
    rows: list[dict]
    running: str
    since: float
    reports: list[tuple[str, str]]
    is_done: bool
    has_summed_up: bool
    is_clean: bool


def say(event: str, **fields: object) -> None:
    """Write a line of a child, at once."""
    print(f"{EVENT}{json.dumps({'event': event, **fields})}", flush=True)


def read_output(name: str, text: str) -> Output:
    """Read what a tool and its child wrote."""
    total, rows, running, since, is_done = 0, [], "", 0.0, False
    reports: list[tuple[str, str]] = []
    for line in text.splitlines():
        message = _parse_event(line)
        if line.startswith(REPORT):
            _add_report(reports, line.removeprefix(REPORT), running or (rows[-1]["program"] if rows else ""))
        elif message.get("event") == "start":
            total = message["total"]
        elif message.get("event") == "begin":
            running, since = message["program"], message["at"]
        elif message.get("event") == "end":
            running = ""
            rows.append({key: value for key, value in message.items() if key != "event"})
        is_done = is_done or message.get("event") == "done"
    has_summed_up = CLEAN[name].partition(":")[0] in text
    return Output(total, rows, running, since, reports, is_done, has_summed_up, CLEAN[name] in text)


def _parse_event(line: str) -> dict:
    """Return the event of a line, an empty one where it has none, or half of one (of a child that was killed)."""
    try:
        return json.loads(line.partition(EVENT)[2] or "{}")
    except ValueError:
        return {}


def _add_report(reports: list[tuple[str, str]], line: str, program: str) -> None:
    """Add a line of a tool: a report is one line and those indented deeper that follow it."""
    text = line.removeprefix(" ").rstrip()
    if not text or any(word in text for word in NO_REPORTS):
        return
    if text.startswith(" ") and reports:
        before, program = reports[-1]
        reports[-1] = (f"{before}\n{text}"[:MAX_TEXT], program)
    else:
        reports.append((text, program))


def merge_reports(outputs: dict[str, list[Output]]) -> list[dict]:
    """Return each report of the tools once: its text with the first numbers of hazards, its kernel, how often it came,
    and during which programs.
    """
    found: dict[tuple, dict] = {}
    for tool, children in outputs.items():
        for text, program in (report for output in children for report in output.reports):
            kernel = re.search(r"deep_(?!gemm\b)\w+", text)  # the namespace is no kernel
            row = {"tool": tool, "kernel": kernel[0] if kernel else None, "text": text, "count": 0, "beside": []}
            row = found.setdefault((tool, re.sub(r"\[\d+ hazards?\]", "", text)), row)
            row["count"] += 1
            if program not in row["beside"] and len(row["beside"]) < MAX_BESIDE:
                row["beside"].append(program)
    return sorted(found.values(), key=lambda row: -row["count"])


def find_tool() -> str | None:
    """Return the path of compute-sanitizer, None where there is none."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=f"{home}/bin:{home}/compute-sanitizer"
    )


class Tool:
    """One child of a tool running in the background, its output in a temporary file.

    claims: folder in which children say which program they take; they then stop at the deadline, and one that is killed
    there is no failure but where its program hangs. gpu: as CUDA_VISIBLE_DEVICES names it. threads: of the CPU.
    After finish(): `found`, what was said; `fault`, what the child did that it must not do, "" where nothing.
    """

    def __init__(
        self,
        name: str,
        deadline: float,
        ops: tuple[str, ...] = ALL_OPS,
        part: str = "1/1",
        *,
        claims: str = "",
        gpu: str = "",
        threads: int = 0,
    ):
        self.name, self.start, self.stops, self.is_killed = name, time.monotonic(), bool(claims), False
        self.part, self.end, self.seconds, self.fault = part, float("inf"), 0.0, ""
        self.is_over = False  # its group was killed when it ended: the number may be another's by now
        self.timeout_s = deadline - time.time() if claims else max(30.0, min(TIMEOUT_S, deadline - time.time()))
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read by finish(), which closes it)
        child = ["--child", part, "--ops", ",".join(ops)]
        child += ["--claims", claims, "--deadline", str(deadline - LAST_S)] if claims else []
        child += ["--brief"] if name == "racecheck" else []
        self.process: subprocess.Popen | None = None
        try:
            self.process = subprocess.Popen(
                make_command(name, child, threads),
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env=os.environ | make_environment(name, gpu, threads),
                start_new_session=True,
            )
        except OSError as error:
            self.output.write(str(error))

    @property
    def due(self) -> float:
        """When the child's time is up, by the monotonic clock."""
        return self.start + self.timeout_s

    def wait(self, earliest: float) -> None:
        """Wait until the child's time is up, and until `earliest` at least. One that still runs then is killed, and not
        waited for. Once it was waited for, this does nothing.
        """
        if self.seconds:
            return
        if self.process is not None:
            try:
                self.process.wait(max(0.0, max(self.due, earliest) - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.is_killed, self.end = True, time.time()
                send_kill(self.process)
        self.seconds = time.monotonic() - self.start

    def finish(self) -> tuple[dict, list[str]]:
        """Wait for the child; return its section of the record and its failures."""
        wait_for_all([self])
        if self.process is not None:
            kill_group(self.process)  # what it has left behind, too
            self.is_over = True
        self.output.seek(0)
        text = self.output.read()
        self.output.close()
        self.found = read_output(self.name, text)
        failures = self._judge(text)
        section = {
            "jobs": 1,
            "cases": len(self.found.rows),
            "failed_jobs": int(bool(failures)),
            "seconds": round(self.seconds, 1),
        }
        return section, failures

    def _judge(self, text: str) -> list[str]:
        """Return what was found, and what a child did that it must not do."""
        found = self.found
        failures = [f"wrong: {failure}" for row in found.rows for failure in row["failures"]]
        failures += [f"during {program}: {report[:600]}" for report, program in found.reports[:5]]
        self.fault = self._find_fault(text)
        if self.fault:
            failures.append(self.fault)
        elif not self.is_killed and not found.is_clean and not failures:
            failures.append(text[-1500:])
        return [f"{self.name}: {failure}" for failure in failures]

    def _find_fault(self, text: str) -> str:
        """Return in which way the child did not end as it must, "" where it did."""
        found = self.found
        if self.is_killed and self.stops:
            seconds = self.end - found.since
            return f"{found.running} hung for {seconds:.0f} s" if found.running and seconds > HANG_S else ""
        if self.is_killed:
            return f"did not end in {self.timeout_s:.0f} s, during {found.running or 'its start or end'}"
        if not found.is_done or not (found.rows or self.stops):
            return f"the child died, during {found.running or 'its start'}: {text[-1500:]}"
        return ""


def make_command(name: str, child: list[str], threads: int) -> list[str]:
    """Return the command that runs a child under a tool. By default every racecheck has a thread for each core."""
    workers = ["--racecheck-num-workers", str(threads)] if threads and name == "racecheck" else []
    tool = [find_tool() or "compute-sanitizer", "--tool", name, "--launch-timeout", "120", *TOOLS[name], *workers]
    return [*tool, sys.executable, "-m", "tests.gpu.sanitizer", *child]


def make_environment(name: str, gpu: str, threads: int) -> dict[str, str]:
    """Return what the environment of a child has beside ours; under memcheck every tensor has bounds of its own."""
    found = {} if name == "racecheck" else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    found |= {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    return found | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


class Tools(list[Tool]):
    """Tools that run in the background; leaving its block kills those that have not ended, as Ctrl-C does."""

    def __enter__(self) -> "Tools":
        return self

    def __exit__(self, *_: object) -> None:
        kill_groups([tool.process for tool in self if tool.process is not None and not tool.is_over])


def start_tools(
    tools: Tools,
    deadline: float,
    ops: tuple[str, ...] = ALL_OPS,
    names: Iterable[str] = DEFAULT_TOOLS,
    parts: int = PARTS,
    shard: tuple[int, int] = (1, 1),
) -> None:
    """Start every child of the tools on a shard's share of what is watched of those op kinds, in the background."""
    first, total = (shard[0] - 1) * parts + 1, shard[1] * parts
    for name in names:
        for part in range(first, first + parts):
            with holding_signals():  # whoever has been started is in the list that is ended
                tools.append(Tool(name, deadline, ops, f"{part}/{total}"))


def wait_for_all(tools: list[Tool]) -> None:
    """Wait until each child has ended or its time is up. No child is given the time in which others are waited for: it
    would look as if its program had hung meanwhile.
    """
    earliest = time.monotonic() + LAST_CHANCE_S
    for tool in sorted(tools, key=lambda tool: tool.due):
        tool.wait(earliest)


def finish_tools(tools: list[Tool]) -> tuple[dict[str, dict], list[str]]:
    """Wait for all children; return a section of the record for each tool, and the failures."""
    sections: dict[str, dict] = {}
    failures = []
    wait_for_all(tools)
    for tool in tools:
        section, reasons = tool.finish()
        total = sections.setdefault(f"sanitizer_{tool.name}", make_section())
        for key in ("jobs", "cases", "failed_jobs"):
            total[key] += section[key]
        total["seconds"] = max(total["seconds"], section["seconds"])  # they run side by side
        failures += reasons
    return sections, failures
