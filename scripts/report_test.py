#!/usr/bin/env python3
"""`assay report` and `assay calibrate` as a user runs them: pages of what is stored, and refusal of what was touched.

    scripts/report_test.py --assay PROGRAM
"""
import json
import pathlib
import subprocess
import unittest

from assay_testing import ROOT, InFolder, line_of, main, run

PLOTS = subprocess.run(["/usr/bin/python3", "-c", "import numpy, matplotlib"], capture_output=True, check=False).returncode == 0


def stored(**wanted):
    """A stored comparison: its file, its line and itself."""
    for path in sorted((ROOT / "results").rglob("ab_*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if all(record["plan"]["body"][k] == v for k, v in wanted.items()):
                return path, line, record
    raise AssertionError(f"no stored record with {wanted}")


class Report(InFolder):
    @unittest.skipUnless(PLOTS, "no numpy and matplotlib")
    def test_a_page_and_its_plots(self):
        _, line, record = stored(stage="confirm")
        (self.path / "one.jsonl").write_text(line + "\n")
        done = run("report", self.path / "one.jsonl", "--out", self.path / "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        ident = record["record_sha256"][:16]
        page = (self.path / "out" / f"{ident}.md").read_text()
        self.assertIn(record["verdict"]["word"], page)
        for tier in record["plan"]["body"]["tiers"]:
            self.assertIn(f"`{tier['id']}`", page)
        index = (self.path / "out" / "index.md").read_text()
        self.assertIn(f"({ident}.md)", index)
        for png in [f"{ident}.png", *(p.name for p in (self.path / "out").glob("*_*.png"))]:
            self.assertEqual((self.path / "out" / png).read_bytes()[:8], b"\x89PNG\r\n\x1a\n", png)
        self.assertEqual(len(list((self.path / "out").glob("*.png"))), 4)  # the page's, forest, A/A null, roofline

    def test_a_touched_record_is_refused_by_name(self):
        _, line, record = stored(stage="confirm")
        tier = record["plan"]["body"]["tiers"][0]["id"]
        record["runs"][3]["samples"][tier]["wall"][0] *= 0.5
        (self.path / "touched.jsonl").write_text(line_of(record))
        done = run("report", self.path / "touched.jsonl", "--out", self.path / "out")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("touched.jsonl: line 1", done.stderr)
        self.assertIn(f"runs/3/samples/{tier}", done.stderr)
        self.assertFalse((self.path / "out").exists())

    def test_every_stored_record_is_verified_within_a_second(self):
        done = run("verify", ROOT / "results", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [r for r in json.loads(done.stdout)["records"] if "seconds" in r]
        self.assertGreater(len(records), 200)
        slowest = max(records, key=lambda r: r["seconds"])
        self.assertLessEqual(slowest["seconds"], 1.0, slowest)

    def test_a_record_cut_short_is_refused(self):
        _, line, _ = stored(stage="confirm")
        (self.path / "cut.jsonl").write_text(line[: len(line) // 2])
        done = run("report", self.path / "cut.jsonl", "--out", self.path / "out")
        self.assertEqual(done.returncode, 3)
        self.assertIn("cut.jsonl: line 1, byte", done.stderr)
        self.assertEqual(run("report", self.path / "none.jsonl", "--out", self.path / "out").returncode, 2)

    def test_a_calibration_is_made_again_by_the_verifier(self):
        done = run("calibrate", "--repetitions", 3, "--scratch", "--out", self.path, "--json", "-")
        self.assertEqual(done.returncode, 1, done.stderr)  # three repetitions show nothing
        self.assertIn("a reduced table", done.stderr)
        path = self.path / "scratch" / "calibration.jsonl"
        self.assertEqual(run("verify", path).returncode, 0)
        for change, named in ((lambda r: r["coverage"][5]["head"][1].__setitem__(0, 0.0), "coverage/5/head"),
                              (lambda r: r["abg4"][2].__setitem__("covered", 4), "abg4/2/covered"),
                              (lambda r: r["aa"].pop(), "aa/7: missing"),
                              (lambda r: r.__setitem__("rng_seed", 2), "coverage/0/head")):
            record = json.loads(path.read_text())
            change(record)
            (self.path / "changed.jsonl").write_text(line_of(record))
            changed = run("verify", self.path / "changed.jsonl")
            self.assertNotEqual(changed.returncode, 0)
            self.assertIn(named, changed.stderr)


class Tiers(InFolder):
    MODEL = ROOT / "engine" / "models" / "tiny-gemma4-moe-q4_0.gguf"

    def tokens(self, stem):
        done = run("tokenize", "--model", self.MODEL, "--text-file", ROOT / "bench" / "tiers" / f"{stem}.txt", "--json", "-")
        return len(json.loads(done.stdout)["ids"])

    def test_pinned_lengths(self):
        self.assertEqual(self.tokens("pinned_prose"), 3720)
        self.assertEqual(self.tokens("ttft_17"), 17)

    def test_a_tier_is_read_and_written_at_its_depth(self):
        done = run("bench-model", "--model", self.MODEL, "--profile", self.fast_profile(), "--tier", "tiny,ttft_17,followup_2k", "--repeat", 1, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [(r["tier"], r["test"], r["tokens"], r["depth_tokens"]) for r in json.loads(done.stdout)["rows"]]
        self.assertEqual(rows, [("tiny", "prefill", 13, 0), ("tiny", "decode", 64, 13), ("ttft_17", "prefill", 17, 0), ("followup_2k", "prefill", 64, 2048)])

    def fast_profile(self):
        """The fastest of each op that runs here, so that the test is short; nobody quotes its times."""
        catalog = json.loads(run("catalog", "--json", "-").stdout)
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        ops = {o["op"]: "avx2" for o in catalog["ops"] if any(v["name"] == "avx2" for v in o["variants"])} if " avx2" in flags else {}
        path = self.path / "profile.json"
        path.write_text(json.dumps({"schema": "assay-profile", "schema_version": 1, "ops": ops}))
        return path

    def test_an_unknown_tier_is_named(self):
        done = run("bench-model", "--model", self.MODEL, "--tier", "count_5k")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no tier 'count_5k': valid are count_4k", done.stderr)


if __name__ == "__main__":
    main()
