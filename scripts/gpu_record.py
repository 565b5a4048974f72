#!/usr/bin/env python3
"""Writes what scripts/gpu_check did as one sealed record (results/schema/gpu_check.schema.json).

Appends to OUT/records.jsonl when there is anything new in --done since the last call; bench-model's documents
(OUT/bench-*.json) go into the record whole, so that the table and its conditions stay together.
"""
import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time


def canonical(value):
    """As kernels/base/record.cpp writes and seals. Fractions are written by both as the shortest text that reads back."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", required=True, type=pathlib.Path, help="gpu_check's done.tsv")
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the program assay of the checked build")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of records.jsonl and logs")
    args = parser.parse_args()
    steps = []
    cards = set()
    for line in args.done.read_text().splitlines():
        name, code, _tree, card, seconds, said = line.split("\t")
        cards.add(card)
        log = args.out / "logs" / f"{name}.log"
        step = {"name": name, "exit": int(code), "seconds": int(seconds), "said": said[:400]}
        if log.is_file():
            step["log_sha256"] = hashlib.sha256(log.read_bytes()).hexdigest()
        steps.append(step)
    if not steps:
        return 0
    build = subprocess.run([args.bin, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    benches = {p.stem: json.loads(p.read_text()) for p in sorted(args.out.glob("bench-*.json"))}
    record = {
        "schema": "assay-gpu-check", "schema_version": "1.0.0",
        "recorded_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "build": build, "scratch": re.search(r" clean ", build) is None,
        "card": ", ".join(sorted(cards)), "steps": steps,
        # As text: a number's spelling must not decide whether the seal holds.
        "bench_model": {name: canonical(document) for name, document in benches.items()},
    }
    record["record_sha256"] = hashlib.sha256(canonical(record).encode()).hexdigest()
    with open(args.out / "records.jsonl", "a", encoding="utf-8") as records:
        records.write(canonical(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
