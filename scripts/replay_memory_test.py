#!/usr/bin/env python3
"""Replays the shipped capture once and forty times over in one file: the peak memory must not grow with the trace.

    scripts/replay_memory_test.py --assay build/host/bin/assay
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRACE = str(ROOT / "traces" / "tiny-capture.mrt")
COPIES = 40
ALLOWED_KIB = 6 * 1024  # 40 copies are 70 MiB; held in memory they would show
# Policies of one size, the exact LRU curve of all sizes and the sampled one. An oracle's next uses stay in memory up to a
# bound of its own (replay/spill.h) and on disk beyond.
FLAGS = ["--policies", "lru,decay32,successor", "--residency", "0.5", "--shards-rate", "0.5", "--resamples", "1"]


def peak_kib(command):
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {child.returncode}")
    return usage.ru_maxrss


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--assay", required=True)
    assay = parser.parse_args().assay
    with tempfile.TemporaryDirectory() as folder:
        long = os.path.join(folder, "long.mrt")
        subprocess.run([assay, "trace", "merge", *[TRACE] * COPIES, "--out", long], check=True, stdout=subprocess.DEVNULL)
        once = peak_kib([assay, "replay", TRACE, *FLAGS])
        often = peak_kib([assay, "replay", long, *FLAGS])
    print(f"replay_memory: peak {once} KiB for the trace, {often} KiB for {COPIES} of it")
    return 0 if often <= once + ALLOWED_KIB else 1


if __name__ == "__main__":
    sys.exit(main())
