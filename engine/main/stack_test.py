#!/usr/bin/env python3
"""Rounds of a whole engine as a user runs them: the engine lane of `assay ab`, and the stack of `assay prove`.

    engine/main/stack_test.py --assay PROGRAM
"""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from assay_testing import InFolder, line_of, main, run


@unittest.skipUnless(" avx2" in pathlib.Path("/proc/cpuinfo").read_text(), "no variant runs on this machine")
class Rounds(InFolder):
    def setUp(self):
        super().setUp()
        self.stored = self.path / "scratch" / "stack.jsonl"

    def test_engine_lane(self):
        flags = ["ab", "--op", "gemm_quant", "--b", "avx2", "--lane", "engine", "--tiers", "ttft_17", "--pairs", 8, "--scratch", "--out", self.path]
        done = run(*flags, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        self.assertEqual(record["verdict"]["word"], "STACK-MEMBER", record["verdict"])
        self.assertEqual(len(record["runs"]), 2 * 9)
        self.assertGreater(record["analysis"]["speedup"], 1.0)
        sizes = {run_["env_bytes"] for run_ in record["runs"]}
        self.assertEqual(len(sizes), 1, "both arms have an environment of one length")
        self.assertEqual(run("verify", self.stored).returncode, 0)
        record["runs"][5]["samples"]["ttft_17"][0] *= 2
        (self.path / "touched.jsonl").write_text(line_of(record))
        touched = run("verify", self.path / "touched.jsonl")
        self.assertEqual(touched.returncode, 1)
        self.assertIn("runs/5/samples", touched.stderr)

    def test_bad_requests(self):
        base = ["ab", "--op", "gemm_quant", "--b", "avx2", "--scratch", "--out", self.path]
        for more, code, named in ((["--lane", "window", "--tiers", "natural"], 2, "tier natural is not of lane window"),
                                  (["--lane", "engine", "--tiers", "nothing"], 2, "no tier 'nothing': valid are"),
                                  (["--lane", "engine", "--pairs", 9], 2, "--pairs 9"),
                                  (["--lane", "engine", "--model", "none.gguf"], 3, "none.gguf")):
            done = run(*base, *more)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(named, done.stderr)

    def test_prove_measures_the_stack_and_resumes(self):
        flags = ["prove", "--scratch", "--ops", "gemm_quant", "--confirm", 1, "--pairs", 8, "--blocks", 2, "--screen-blocks", 2, "--bar", 2,
                 "--stack-rounds", 8, "--stack-tiers", "ttft_17", "--out", self.path, "--json", "-"]
        done = run(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        first = json.loads(done.stdout)
        self.assertTrue(first["complete"])
        self.assertEqual({s["lane"] for s in first["stacks"]}, {"fast", "exact"})
        self.assertIn("STACK-MEMBER", [(s["whole"] or s["drop_one"])["verdict"]["word"] for s in first["stacks"]])
        proven = json.loads((self.path / "scratch" / "proven_host.json").read_text())
        for stack in first["stacks"]:
            last = stack["whole"] or stack["drop_one"]
            if last["verdict"]["word"] != "STACK-MEMBER":
                continue
            named = proven["stacks"][stack["lane"]]
            self.assertEqual(named["record"], last["record"])
            for op in stack["drop_one"]["verdict"]["dropped"]:
                self.assertNotIn(op, named["members"])
                self.assertNotIn(stack["lane"], proven["ops"].get(op, {}))
        self.assertEqual(run("verify", self.path / "scratch").returncode, 0)
        lines = self.stored.read_text().splitlines()
        again = json.loads(run(*flags).stdout)
        self.assertEqual([s["drop_one"]["record"] for s in again["stacks"]], [s["drop_one"]["record"] for s in first["stacks"]])
        self.assertEqual(self.stored.read_text().splitlines(), lines)
        # A set that claims another stack than its record is faulty.
        next(iter(proven["stacks"].values()))["speedup"] = 9.0
        (self.path / "scratch" / "proven_host.json").write_text(line_of(proven))
        faulty = run("verify", self.path / "scratch")
        self.assertEqual(faulty.returncode, 1)
        self.assertIn("speedup: not the record's", faulty.stderr)


if __name__ == "__main__":
    main()
