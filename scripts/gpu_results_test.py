#!/usr/bin/env python3
"""gpu_record.py and import_results on a made-up run: the record verifies, is filed once, and not after a change."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SCRIPTS = pathlib.Path(__file__).resolve().parent
VERSION = "assay 0.1.0 commit 0123456789ab clean tree 0123456789ab g++ 12.2.0 cuda 13.0 Release"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assay", required=True, help="the program that verifies")
    assay = parser.parse_args().assay
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        (out / "logs").mkdir(parents=True)
        program = out / "assay"
        program.write_text(f"#!/bin/sh\necho '{VERSION}'\n")
        program.chmod(0o755)
        (out / "logs/test.device.log").write_text("100% tests passed\n")
        (out / "logs/sanitize.memcheck.gemv_quant.log").write_text("========= ERROR SUMMARY: 0 errors\n")
        (out / "logs/sanitize.memcheck.gemm_quant.log").write_text("========= ERROR SUMMARY: 3 errors\n")
        (out / "logs/sanitize.racecheck.gemv_quant.log").write_text("========= killed\n")
        (out / "done.tsv").write_text("test.device\t0\tabc\tNVIDIA H200, 9.0, 580.1\t12\t100% tests passed\n"
                                      f"prove.probe\t0\tabc\tNVIDIA H200, 9.0, 580.1\t7\t{SCRIPTS.parent}/build/card_probe.jsonl\n"
                                      "sanitize.memcheck.gemv_quant\t0\tabc\tNVIDIA H200, 9.0, 580.1\t5\tok\n"
                                      "sanitize.memcheck.gemm_quant\t1\tabc\tNVIDIA H200, 9.0, 580.1\t5\tbad\n"
                                      "sanitize.racecheck.gemv_quant\t137\tabc\tNVIDIA H200, 9.0, 580.1\t5\tkilled\n"
                                      "bench.stock\t1\tabc\tNVIDIA H200, 9.0, 580.1\t3\tr\u00e9fus\u00e9\n")
        (out / "bench-stock.json").write_text('{"rows": [{"median_tokens_per_s": 240.125}]}')

        def run(*command):
            return subprocess.run([str(c) for c in command], capture_output=True, text=True)

        def importing():
            return run(sys.executable, SCRIPTS / "import_results", out, "--assay", assay, "--root", folder)

        made = run(sys.executable, SCRIPTS / "gpu_record.py", "--done", out / "done.tsv", "--bin", program, "--out", out,
                   "--ops", "gemm_quant,gemv_quant,router_topk")
        assert made.returncode == 0, made.stderr
        verified = run(assay, "verify", out / "records.jsonl")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert f"{SCRIPTS.parent}/" not in (out / "records.jsonl").read_text(), "the checkout's place is in a record"
        sanitized = {r["tool"]: {p["program"]: (p["outcome"], p["findings"]) for p in r["programs"]}
                     for r in map(json.loads, (out / "records.jsonl").read_text().splitlines()) if "tool" in r}
        assert sanitized == {
            "memcheck": {"parity_gemm_quant": ("findings", 3), "parity_gemv_quant": ("clean", 0), "parity_router_topk": ("not run", 0)},
            "racecheck": {"parity_gemm_quant": ("not run", 0), "parity_gemv_quant": ("no summary", 0),
                          "parity_router_topk": ("not run", 0)}}, sanitized
        # A tree of results keeps its places; here the same records under another name.
        carried = out / "results/nvidia-h200/2026-11-30_0123456789ab"
        carried.mkdir(parents=True)
        (carried / "copy.jsonl").write_text((out / "records.jsonl").read_text())
        first = importing()
        assert first.returncode == 0 and "6 records filed" in first.stdout, first.stdout + first.stderr
        assert (pathlib.Path(folder) / "results/nvidia-h200/2026-11-30_0123456789ab/copy.jsonl").is_file()
        filed = list(pathlib.Path(folder).glob("results/nvidia-h200/*_0123456789ab/gpu_check.jsonl"))
        assert len(filed) == 1 and filed[0].with_name("sanitize.jsonl").is_file(), filed
        second = importing()
        assert "0 records filed, 6 were there already" in second.stdout, second.stdout
        records = out / "records.jsonl"
        records.write_text(records.read_text().replace('"exit":1', '"exit":0'))
        touched = importing()
        assert touched.returncode == 1, touched.stdout + touched.stderr
    print("gpu_results: ok")


if __name__ == "__main__":
    main()
