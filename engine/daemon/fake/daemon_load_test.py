"""The records of daemon_load.py are judged by `assay verify` as by the program that wrote them.

  daemon_load_test.py --program build/host/bin/fake_assayd --assay build/host/bin/assay
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from daemon_load import bins, count, least, most, record_of, series

OPTIONS = None


def sealed(record):
    kept = {key: value for key, value in record.items() if key != "record_sha256"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return kept | {"record_sha256": hashlib.sha256(text.encode()).hexdigest()}


class Loads(unittest.TestCase):
    def verify(self, record):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write(json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n")
            f.flush()
            out = subprocess.run([OPTIONS.assay, "verify", f.name], capture_output=True, text=True)
        return out.returncode, out.stdout + out.stderr

    def made(self):
        """Every way of taking a value, met and missed, with values that are easy to get wrong."""
        raw = {"n": count(3), "times": bins([5] * 60 + [7] * 39 + [900]), "few": bins([4, 2]),
               "memory": series([(i * 700, 9000 + i * i % 11 - i // 3) for i in range(43)]), "flat": series([(0, 8), (10, 8)])}
        goals = [most("n", "count", 3), most("n", "count", 2), least("n", "count", 3), least("n", "count", 4),
                 most("times", "p50", 5), most("times", "p99", 899), most("times", "p99", 900), least("few", "min", 2),
                 most("few", "p50", 3), most("memory", "slope_per_10000", 0), most("memory", "spread", 0), most("memory", "growth", 0),
                 most("flat", "spread", 0), most("flat", "growth", 0), most("flat", "slope_per_10000", -1)]
        return record_of("soak", {"requests": 1}, raw, goals, "assay 0 clean tree", 0)

    def test_both_judges_agree(self):
        record = self.made()
        self.assertEqual([g["met"] for g in record["goals"]],
                         [True, False, True, False, True, False, True, True, False, True, False, True, True, True, False])
        self.assertEqual(self.verify(record)[0], 0, self.verify(record))

    def test_a_record_that_was_touched_is_refused(self):
        for change, said in ((lambda r: r["raw"]["n"].update(count=2), "goals/0/value"),
                             (lambda r: r["goals"][5].update(at_most=900), "goals/5/met"),
                             (lambda r: r["goals"][1].update(met=True), "goals/1/met"),
                             (lambda r: r["raw"]["times"]["bins"].pop(), "goals/6/value"),
                             (lambda r: r["raw"]["memory"]["series"][0].__setitem__(1, 0), "goals/9/value"),
                             (lambda r: r["goals"][0].update(of="nothing"), "goals/0/of"),
                             (lambda r: r["goals"][0].update(at_least=0), "goals/0/of"),
                             (lambda r: r["goals"][0].update(take="p99"), "goals/0/value"),
                             (lambda r: r.update(good=True), "good")):
            record = self.made()
            change(record)
            code, text = self.verify(sealed(record))
            self.assertEqual(code, 1, said)
            self.assertIn(said, text)
        code, text = self.verify(self.made() | {"build": "another"})
        self.assertEqual((code, "record_sha256" in text), (1, True))

    def test_a_load_writes_such_a_record(self):
        with tempfile.TemporaryDirectory() as folder:
            for mode, flags in (("firstframe", ["--requests", "30"]), ("storm", ["--requests", "60"]), ("soak", ["--requests", "100"])):
                path = os.path.join(folder, mode + ".jsonl")
                out = subprocess.run([sys.executable, "-B", os.path.join(HERE, "daemon_load.py"), "--program", OPTIONS.program, "--record",
                                      path, mode, *flags], capture_output=True, text=True)
                self.assertIn(out.returncode, (0, 1), out.stderr)  # a busy machine may miss a goal
                with open(path, encoding="ascii") as f:
                    record = json.loads(f.read())
                self.assertEqual(self.verify(record)[0], 0, self.verify(record))
                self.assertEqual(out.returncode, 0 if record["good"] else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--assay", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
