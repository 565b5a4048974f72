#!/usr/bin/env python3
"""Runs the numpy reader of docs/replay.md on the shipped capture, as it stands on the page. Exit 77 without numpy."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WANT = ["6035 steps, 12 layers x 64 experts, top-8, 1878 steps held out", "% of the experts were used the step before"]


def main():
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("replay_docs: no numpy for this python3")
        return 77
    snippets = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "replay.md").read_text(), flags=re.S | re.M)
    if len(snippets) != 1:
        print(f"replay_docs: docs/replay.md holds {len(snippets)} python snippets, expected one")
        return 1
    run = subprocess.run([sys.executable, "-c", snippets[0], str(ROOT / "traces" / "tiny-capture.mrt")],
                         capture_output=True, text=True)
    lines = run.stdout.splitlines()
    good = run.returncode == 0 and len(lines) == 2 and lines[0] == WANT[0] and lines[1].endswith(WANT[1])
    # The share must be a share: the reader's arrays hold the routing, not bytes beside it.
    good = good and 10.0 < float(lines[1].split()[0]) < 90.0
    print(run.stdout + run.stderr + f"replay_docs: {'good' if good else 'WRONG'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
