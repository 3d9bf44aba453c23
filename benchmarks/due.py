"""List what is to be measured again on the GPU at hand: records of other kernels, selectors or choices than the tree's.

Example: python -m benchmarks.due          (a line for each; exit 1 while there is any)
Example: python -m benchmarks.gpu_session build due --total 540 --out results

The steps are those of gpu_session.py that write these records, each with a budget in seconds. `--model h100` asks about
the records of another GPU model. Records that need no GPU (`evaluation.json`, `fit_rates.json`, `out_of_fold.json`,
`calibration.json`) have no step. What is recorded beside DeepGEMM needs it again: gpu_session.py --deepgemm.
`mega_moe` wants two GPUs.

Result: with --out, {"due": [{"step", "reason"}]}, and the exit code is 0.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from . import stale, today
from .gpu_session import make_step, split_budget
from .stamp import RECORDS, ROOT, find_results, read_json, write_json

#: Each step that writes a record, with seconds that suffice on two H200s (`suite` takes twice as long on one); what
#: most targets hang on comes first.
STEPS = (
    *("suite@560", "callers@60", "plain_kernels_bits@60"),
    *("dense_fp8@90", "random_fp8@80", "m_grouped_masked@90", "m_grouped_contiguous@70", "k_grouped@70"),
    *("dense_bf16@80", "wgrad_fp8@70", "mqa_logits@90", "host_time@90", "plain_kernels@90", "host_ops@40"),
    *("choice_regret@200", "transpose_fp8@70", "batch_invariance@70", "scale_copies@90", "pdl@60", "second_tile@90"),
    *("compile_time@120", "racecheck@300", "mega_moe@120", "moe_layer@60"),
    *("models@120", "models_compiled@150", "models_qwen3@90", "models_qwen3_transformers@120", "models_deepseek@120"),
    *("train_llama@200", "tuned_models@200"),
)
#: Of a record that is not there.
MISSING = "was never measured"


class Due(NamedTuple):
    """A step of gpu_session.py, with its budget, and why its record is not the tree's."""

    step: str
    reason: str


def list_due(folder: Path) -> list[Due]:
    """Return the steps whose records in a folder of results are missing, stale, or of other choices than today's."""
    states = {ROOT / state.path: state for state in stale.get_states() if state.is_stale}
    found = []
    for step in STEPS:
        path = folder / name_record(step)
        state = states.get(path)
        if not path.exists():
            reason = MISSING
        elif state is not None:
            reason = state.reason or stale.UNEXPLAINED
        else:
            reason = get_further_reason(path)
        if reason:
            found.append(Due(step, reason))
    return found


def name_record(step: str) -> str:
    """Return the name of the file that a step writes."""
    result = make_step(split_budget(step, 0.0)[0], Path(), 0.0).result
    assert result is not None, step
    return result.name


def get_further_reason(path: Path) -> str | None:
    """Return why a record whose hashes are the tree's is not of its choices, None where it is."""
    record = read_json(path)
    return stale.get_selector_reason(record) if path.name == stale.GPU_RECORD else today.get_reason(path.name, record)


def main(arguments: list[str] | None = None) -> int:
    """Print the steps; return 1 while there is any, but 0 with --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="GPU model of the records, such as h100; that of the GPU at hand by default")
    parser.add_argument("--out", type=Path, help="write the steps there, too, and return 0")
    args = parser.parse_args(arguments)
    folder = RECORDS / args.model if args.model else find_results()
    if args.model and not folder.is_dir():
        parser.error(f"--model {args.model}: no records in {folder}")
    found = list_due(folder)
    for due in found:
        print(f"{due.step:30} {due.reason}")
    if args.out:
        write_json(args.out, {"due": [due._asdict() for due in found]})
    return 1 if found and not args.out else 0


if __name__ == "__main__":
    sys.exit(main())
