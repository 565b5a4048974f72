#!/usr/bin/env python3
"""Breaks one index of a kernel and shows that its parity program sees it.

    scripts/plant_kernel.py --build build/simt --backend simt
    scripts/plant_kernel.py --build build/cuda-native --backend cuda

The kernel is edited in place in a built tree, its parity program rebuilt and run, which must fail and name a case; then the
edit is undone and the program built and run again, which must pass. Exit 0: the break was seen; 1: it was not; 3: the text to
edit is gone, so this list has to follow the code.
"""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# (op, variant, cases, file, text, replacement): the second halves' sums of the splits, one element further on.
BREAKS = [("attention_decode", "split_kv", "^(keys_33|head_128_group_4)$", "variants/attention_decode/split_kv.cu",
           "mine[static_cast<std::size_t>(s) * width + d]", "mine[static_cast<std::size_t>(s) * width + d + 1]")]


def judged(args, op, variant, cases):
    """Builds and runs the parity program; (exit code, what it said)."""
    subprocess.run(["cmake", "--build", args.build, "--target", f"parity_{op}"], check=True, stdout=subprocess.DEVNULL)
    run = subprocess.run([ROOT / args.build / "bin" / f"parity_{op}", "--backend", args.backend, "--variant", variant,
                          "--filter", cases], capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="build folder, configured")
    parser.add_argument("--backend", required=True, choices=["cuda", "simt"])
    args = parser.parse_args()
    asleep = 0
    for op, variant, cases, file, text, replacement in BREAKS:
        path = ROOT / file
        whole = path.read_bytes()
        if whole.count(text.encode()) != 1:
            print(f"plant_kernel: {file} has no single {text!r}", file=sys.stderr)
            return 3
        # A stamp speaks for the tree as it was and would refuse the edit.
        stamp, aside = ROOT / "build/stamp.json", ROOT / "build/stamp.aside.json"
        try:
            if stamp.exists():
                stamp.rename(aside)
            path.write_bytes(whole.replace(text.encode(), replacement.encode()))
            broken, said = judged(args, op, variant, cases)
        finally:
            path.write_bytes(whole)
            if aside.exists():
                aside.rename(stamp)
        fault = next((line for line in said.splitlines() if line.startswith("FAIL ")), "")
        whole_again, _ = judged(args, op, variant, cases)
        seen = broken == 1 and fault != "" and whole_again == 0
        asleep += not seen
        print(f"{file}: '{replacement}' " + (f"is caught: {fault[:300]}" if seen else
              f"IS NOT CAUGHT: exit {broken} when broken, {whole_again} when whole"))
    return 1 if asleep else 0


if __name__ == "__main__":
    sys.exit(main())
