#!/usr/bin/env python3
"""Writes what scripts/gpu_check did as sealed records.

Appends to OUT/records.jsonl one record of the run (results/schema/gpu_check.schema.json) and one for each sanitizer
(sanitize.schema.json): what it found in which program, and what it has not run on yet. bench-model's documents
(OUT/bench-*.json) go into the run's record whole, so that the table and its conditions stay together.
"""
import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time


ROOT = pathlib.Path(__file__).resolve().parent.parent


def canonical(value):
    """As kernels/base/record.cpp writes and seals. Fractions are written by both as the shortest text that reads back."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# The last summary of a log: findings are errors, and for racecheck hazards that it displayed.
SUMMARY = re.compile(r"^=+ (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", re.M)


def findings_of(log):
    """Number of findings in a sanitizer's log, or None when it never came to its summary."""
    found = SUMMARY.findall(log)
    return int(found[-1][0] or found[-1][1]) if found else None


def sanitizer_records(frame, steps, ops, logs):
    """One record a tool that has run at all; every op is in it."""
    for tool in TOOLS:
        programs = []
        for op in ops:
            step = steps.get(f"sanitize.{tool}.{op}")
            log = logs / f"sanitize.{tool}.{op}.log"
            text = log.read_text(errors="replace") if step and log.is_file() else ""
            count = findings_of(text)
            program = {"program": f"parity_{op}", "outcome": "not run", "findings": 0, "seconds": step["seconds"] if step else 0}
            if step and count is None:
                program["outcome"] = "no summary"
            elif step:
                program["outcome"] = "clean" if count == 0 and step["exit"] == 0 else "findings"
                program["findings"] = count
            if text:
                program["log_sha256"] = step["log_sha256"]
                program["log_end"] = text[-600:]
            programs.append(program)
        if any(p["outcome"] != "not run" for p in programs):
            yield {**frame, "schema": "assay-sanitize", "tool": tool, "programs": programs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--done", required=True, type=pathlib.Path, help="gpu_check's done.tsv")
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the program assay of the checked build")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of records.jsonl and logs")
    parser.add_argument("--ops", default="", help="ops whose programs the sanitizers are to run, e.g. a,b")
    args = parser.parse_args()
    steps = []
    cards = set()
    for line in args.done.read_text().splitlines():
        name, code, _tree, card, seconds, said = line.split("\t")
        cards.add(card)
        log = args.out / "logs" / f"{name}.log"
        # A record is read elsewhere: where the checkout lay is no part of what was said.
        said = said.replace(f"{ROOT}/", "")
        step = {"name": name, "exit": int(code), "seconds": int(seconds), "said": said[:400]}
        if log.is_file():
            step["log_sha256"] = hashlib.sha256(log.read_bytes()).hexdigest()
        steps.append(step)
    if not steps:
        return 0
    build = subprocess.run([args.bin, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    benches = {p.stem: json.loads(p.read_text()) for p in sorted(args.out.glob("bench-*.json"))}
    frame = {
        "schema_version": "1.0.0",
        "recorded_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "build": build, "scratch": re.search(r" clean ", build) is None,
        "card": ", ".join(sorted(cards)),
    }
    # As text: a number's spelling must not decide whether the seal holds.
    made = [{**frame, "schema": "assay-gpu-check", "steps": steps,
             "bench_model": {name: canonical(document) for name, document in benches.items()}}]
    latest = {step["name"]: step for step in steps}
    made += sanitizer_records(frame, latest, [op for op in args.ops.split(",") if op], args.out / "logs")
    with open(args.out / "records.jsonl", "a", encoding="utf-8") as records:
        for record in made:
            record["record_sha256"] = hashlib.sha256(canonical(record).encode()).hexdigest()
            records.write(canonical(record) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
