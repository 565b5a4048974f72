#!/usr/bin/env python3
"""The lab on a card (or on the CPU executor): prove, probe and verify go their whole way, and a proven set arms what won.

On the executor the times mean nothing: whatever the verdicts say, every record must verify.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assay", required=True)
    args = parser.parse_args()

    def run(*words, good=(0,)):
        done = subprocess.run([args.assay, *map(str, words)], capture_output=True, text=True)
        assert done.returncode in good, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        tiny = ["--backend", "cuda", "--scratch", "--out", out]
        first = run("probe", *tiny, good=(0, 77))
        if first.returncode == 77:
            print(first.stderr.strip())
            return 77
        prove = ["prove", *tiny, "--ops", "router_topk", "--pairs", 8, "--blocks", 2, "--screen-blocks", 2, "--block-us", 100,
                 "--stack-rounds", 0, "--json", "-"]
        made = json.loads(run(*prove).stdout)
        members = made["members"]
        assert made["complete"] and [m["variant"] for m in members] == ["device"], made
        assert members[0]["parity"]["outcome"] == "pass", members
        again = json.loads(run(*prove).stdout)
        assert again["reused_records"] == 1, "the second run measured again"
        records = sorted(out.rglob("*.jsonl"))
        run("verify", *records)
        ab = [json.loads(line) for line in (out / "scratch/ab_router_topk_device.jsonl").read_text().splitlines()]
        assert len(ab) == 1
        sample = next(iter(ab[0]["runs"][0]["samples"].values()))
        assert sample["event"] and all(e <= w * 1.01 for e, w in zip(sample["event"], sample["wall"])), sample
        gpu = ab[0]["runs"][0]["gpu"]
        assert gpu["before"] and gpu["tiers"] and ab[0]["machine"]["gpu"]["read_bytes_per_s"] > 0, gpu
        text = (out / "scratch/proven_cuda.json").read_text()
        assert json.loads(text)["backend"] == "cuda", text
        model = ROOT / "engine/models/tiny-gemma4-moe-q4_0.gguf"
        run("generate", "--backend", "cuda", "--model", model, "--ids", "2", "--n", 1, "--greedy",
            "--profile", out / "scratch/proven_cuda.json")
        # A record that was touched is refused.
        records[0].write_text(records[0].read_text().replace('"schema_version":"', '"schema_version":"9', 1))
        run("verify", records[0], good=(1, 3))
    print("card_lab: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
