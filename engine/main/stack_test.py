#!/usr/bin/env python3
"""Rounds of a whole engine as a user runs them: their plan files, the engine lane of `assay ab`, and the stack of `assay prove`.

    engine/main/stack_test.py --assay PROGRAM [Plans|Rounds]
"""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from assay_testing import ROOT, InFolder, line_of, main, run


class Plans(InFolder):
    """Plan files of the engine's lanes; nothing is timed."""

    def setUp(self):
        super().setUp()
        self.plan = self.path / "plan.json"

    def write(self, *flags):
        done = run("plan", "--op", "gemm_quant", "--b", "avx2", *flags, "--out", self.plan, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), json.loads(self.plan.read_text())

    def refused(self, plan, named, code=3):
        (self.path / "bad.json").write_text(json.dumps(plan))
        done = run("ab", "--plan", self.path / "bad.json", "--scratch", "--out", self.path / "none")
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn("bad.json", done.stderr)
        self.assertIn(named, done.stderr)
        self.assertFalse((self.path / "none").exists(), "nothing was started")

    def test_of_the_engine(self):
        said, plan = self.write("--lane", "engine", "--tiers", "tiny,ttft_17", "--pairs", 8)
        self.assertEqual([tier["id"] for tier in plan["tiers"]], ["tiny", "ttft_17"])
        self.assertEqual((plan["lane"], plan["rounds"], said["runs"]), ("engine", 8, 18))
        for change, named in (({"tiers": [dict(plan["tiers"][0], id="nothing", weight=1.0)]}, "no tier 'nothing': valid are count_4k"),
                              ({"tiers": [dict(plan["tiers"][0], id="window_512", endpoint="window", weight=1.0)]}, "tier window_512 is not of lane engine"),
                              ({"tiers": [dict(plan["tiers"][0], endpoint="D_bench", weight=1.0)]}, "tier tiny: its endpoint is D_real"),
                              ({"tiers": plan["tiers"][:1]}, "weights sum to 0.5"),
                              ({"tiers": [dict(plan["tiers"][0]), dict(plan["tiers"][0])]}, "tier tiny is named twice"),
                              ({"tiers": []}, "/tiers"),
                              ({"needles": ["nothing"]}, "no needle check 'nothing'"),
                              ({"members": {"gemm_quant": "nothing"}}, "gemm_quant has no variant nothing"),
                              ({"members": {"nothing": "avx2"}}, "nothing"),
                              ({"members": {}}, "/members: none"),
                              ({"rounds": 9}, "/rounds: 9"),
                              ({"repeat": 0}, "/repeat"),
                              ({"alpha": 0.5}, "/alpha"),
                              ({"model": dict(plan["model"], file_bytes=1)}, "not the model of"),
                              ({"novelty": 1}, "novelty"),
                              ({"schema": "assay-other-plan"}, "/schema")):
            with self.subTest(named):
                self.refused(dict(plan, **change), named)

    def test_of_a_window(self):
        _, plan = self.write("--lane", "window", "--pairs", 8)
        self.assertEqual([tier["id"] for tier in plan["tiers"]], ["window_512"])
        self.refused(dict(plan, lane="engine"), "tier window_512 is not of lane engine")

    def test_of_cases(self):
        _, plan = self.write()
        self.refused(dict(plan, tiers=[dict(plan["tiers"][0], id="nothing", weight=1.0)]), "has no case 'nothing': valid are")
        self.refused(dict(plan, lane="engine"), "`assay plan --lane engine`")
        self.refused(dict(plan, op="nothing"), "nothing")

    def test_of_a_regime(self):
        self.assertEqual(self.write("--regime", "cold-rotate")[1]["regime"], "cold-rotate")
        self.assertEqual(self.write("--regime", "cold-flush")[1]["regime"], "cold-flush")
        for flags, named in ((["--op", "router_topk", "--b", "stock", "--regime", "cold-rotate"], "reads no weights or cache"),
                             (["--op", "gemm_quant", "--b", "avx2", "--regime", "warm"], "--regime warm: hot, cold-rotate"),
                             (["--op", "gemm_quant", "--b", "avx2", "--regime", "in-engine"], "--regime in-engine"),
                             (["--op", "gemm_quant", "--regime", "cold-flush", "--inject-slowdown", 0.5], "no share can be repeated")):
            done = run("plan", *flags, "--out", self.path / "none.json")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(named, done.stderr)

    def test_numbers_and_outputs(self):
        _, plan = self.write("--lane", "engine", "--tiers", "tiny", "--pairs", 8)
        bad = self.path / "wide.json"
        bad.write_text(json.dumps(plan).replace('"rounds": 8', '"rounds": 1e999'))
        done = run("ab", "--plan", bad, "--scratch", "--out", self.path / "none")
        self.assertEqual((done.returncode, "wide.json: a number is out of range" in done.stderr), (3, True), done.stderr)
        model = self.path / "model.gguf"
        model.write_bytes((ROOT / "engine/models/tiny-gemma4-moe-q4_0.gguf").read_bytes())
        done = run("plan", "--op", "gemm_quant", "--b", "avx2", "--lane", "engine", "--model", model, "--out", model)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(model.read_bytes()[:4], b"GGUF", "a model that a plan names is not replaced by it")

    def test_flags(self):
        for flags, named in ((["--tiers", "nothing"], "no tier 'nothing': valid are"), (["--tiers", "window_512"], "not of lane engine"),
                             (["--needles", "nothing"], "no needle check 'nothing': valid are needle_512"), (["--needles", "needle_512,needle_512"], "named twice"),
                             (["--stage", "screen"], "--stage"), (["--pairs", 9], "--pairs 9"), (["--regime", "hot"], "--regime"),
                             (["--threads", -1], "threads: 0 to 256"), (["--protocol", "abg4"], "--protocol"), (["--numerics", "some"], "--numerics some")):
            done = run("plan", "--op", "gemm_quant", "--b", "avx2", "--lane", "engine", *flags, "--out", self.plan)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(named, done.stderr)
            self.assertFalse(self.plan.exists())


@unittest.skipUnless(" avx2" in pathlib.Path("/proc/cpuinfo").read_text(), "no variant runs on this machine")
class Rounds(InFolder):
    def setUp(self):
        super().setUp()
        self.stored = self.path / "scratch" / "stack.jsonl"

    def ledger(self):
        return [json.loads(line) for line in (self.path / "scratch" / "ledger_host.jsonl").read_text().splitlines()]

    def test_engine_lane(self):
        plan = self.path / "plan.json"
        self.assertEqual(run("plan", "--op", "gemm_quant", "--b", "avx2", "--lane", "engine", "--tiers", "ttft_17", "--pairs", 8, "--out", plan).returncode, 0)
        done = run("ab", "--plan", plan, "--scratch", "--out", self.path, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(done.stdout)
        self.assertEqual(record["verdict"]["word"], "STACK-MEMBER", record["verdict"])
        self.assertEqual(len(record["runs"]), 2 * 9)
        self.assertEqual(record["plan"]["body"], json.loads(plan.read_text()))
        found = record["analysis"]["needles"]
        self.assertEqual((found["checks"], found["agree"], found["worst"]), (9, 9, 0), "this variant is bitwise to stock")
        self.assertEqual(found["seen"], 9, "a variant that loses a needle would show")
        self.assertIn("so no ADOPT", record["verdict"]["reasons"][-1])
        read = record["needles"][1]
        read["checks"]["needle_512"][3]["logprobs"][0] += 0.02
        (self.path / "touched.jsonl").write_text(line_of(record))
        self.assertIn(f"needles/{read['code']}/checks: altered", run("verify", self.path / "touched.jsonl").stderr)
        read["checks"]["needle_512"][3]["logprobs"][0] -= 0.02
        (self.path / "touched.jsonl").unlink()
        self.assertGreater(record["analysis"]["speedup"], 1.0)
        sizes = {run_["env_bytes"] for run_ in record["runs"]}
        self.assertEqual(len(sizes), 1, "both arms have an environment of one length")
        self.assertEqual(run("verify", self.path).returncode, 0)
        lines = self.ledger()
        self.assertEqual([(line["event"], line["op"], line["b"], line["lane"], line["verdict"]) for line in lines],
                         [("started", "gemm_quant", "avx2", "engine", ""), ("finished", "gemm_quant", "avx2", "engine", "STACK-MEMBER")])
        self.assertEqual(lines[1]["record"], record["record_sha256"])
        record["runs"][5]["samples"]["ttft_17"][0] *= 2
        (self.path / "touched.jsonl").write_text(line_of(record))
        touched = run("verify", self.path / "touched.jsonl")
        self.assertEqual(touched.returncode, 1)
        self.assertIn("runs/5/samples", touched.stderr)

    def test_cold_regimes(self):
        for regime in ("cold-rotate", "cold-flush"):
            done = run("ab", "--op", "gemv_quant", "--b", "avx2", "--tiers", "26b_gate_up_fast", "--regime", regime, "--pairs", 8, "--blocks", 2,
                       "--block-us", 200, "--scratch", "--out", self.path, "--json", "-")
            if "is not cold here" in done.stderr:  # this machine's caches, or what else runs on it
                self.assertEqual(done.returncode, 1)
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            record = json.loads(done.stdout)
            self.assertEqual(record["verdict"]["word"], "STACK-MEMBER", record["verdict"])
            cold = record["cold"]["26b_gate_up_fast"]
            self.assertLessEqual(cold["ratio"], 1.03)
            self.assertEqual(cold["sets"] > 1, regime == "cold-rotate")
            for sample in (run_["samples"]["26b_gate_up_fast"] for run_ in record["runs"]):
                self.assertEqual(sample["regime"], regime)
                self.assertGreater(sample["outputs_checked"], 0)
                self.assertTrue(regime == "cold-rotate" or sample["group_calls"] == 1)
        self.assertEqual(run("verify", self.path).returncode, 0)

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
                 "--needles", "none", "--stack-rounds", 8, "--stack-tiers", "ttft_17", "--out", self.path, "--json", "-"]
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
        rounds = {line["plan_sha256"] for line in self.ledger() if line["lane"] == "engine"}
        self.assertEqual(rounds, {json.loads(line)["plan"]["sha256"] for line in self.stored.read_text().splitlines()})
        for event in ("started", "finished"):  # every member of every round
            counted = sum(line["lane"] == "engine" and line["event"] == event for line in self.ledger())
            self.assertEqual(counted, sum(len(json.loads(line)["plan"]["body"]["members"]) for line in self.stored.read_text().splitlines()))
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
