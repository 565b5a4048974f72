#!/usr/bin/env python3
"""digest.py on small trees: what moves a digest and what does not, with git, with a stamp, with neither."""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "digest.py"
TREE = {
    "CMakeLists.txt": "project(x)\n",
    "cmake/codegen_flags.txt": "cxx -O2\n",
    "kernels/base/blocks.h": "int f();\n",
    "kernels/base/blocks.cpp": '#include "kernels/base/blocks.h"\n#include "kernels/base/tables.h"\n',
    "kernels/base/tables.h": "int t;\n",
    "kernels/base/other.h": "int o;\n",
    "kernels/gemv/op.h": '#include "kernels/base/blocks.h"\n',
    "kernels/gemv/ref.cpp": '#include "kernels/gemv/op.h"\n',
    "kernels/gemv/stock.cu": '#include "kernels/gemv/op.h"\n#include "kernels/base/device.cuh"\n',
    "kernels/gemv/ref_test.cpp": "int test;\n",
    "kernels/base/device.cuh": "int d;\n",
    "kernels/topk/op.h": "int k;\n",
    "variants/gemv/avx2.cpp": '#include "variants/gemv/tile.cuh"\n',
    "variants/gemv/avx2.cu": "int cu;\n",
    "variants/gemv/avx2.md": "note\n",
    "variants/gemv/avx2_test.cpp": "int test;\n",
    "variants/gemv/tile.cuh": "int tile;\n",
    "variants/gemv/wide.cpp": "int wide;\n",
    "docs/index.md": "docs\n",
}


class Digest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in TREE.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_script(self, *args):
        return subprocess.run([sys.executable, SCRIPT, "--root", self.root, *args], capture_output=True, text=True, check=False)

    def header(self):
        out = self.root / "build" / "any" / "data.h"
        done = self.run_script("header", "--out", out, "--project-version", "1", "--compiler", "c", "--cuda", "none",
                               "--build-type", "Release")
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def digests(self):
        text = self.header().read_text()
        found = re.findall(r'\{"(\w+)", "(\w+)", "([0-9a-f]{64})", kParts', text)
        identity = re.search(r'kBuildIdData\{"1", "(\w+)", (true|false), "([0-9a-f]{64})"', text)
        return {f"{op}.{v}": sha for op, v, sha in found}, identity.groups()

    def moved(self, name, text="changed\n"):
        before, tree_before = self.digests()
        old = (self.root / name).read_text() if (self.root / name).exists() else None
        self.write(name, (old or "") + text)
        after, tree_after = self.digests()
        if old is None:
            (self.root / name).unlink()
        else:
            self.write(name, old)
        return {k for k in before if after[k] != before[k]}, tree_before[2] != tree_after[2]

    def git(self, *args):
        done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", self.root, *args],
                              capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def test_lists_stock_and_every_variant(self):
        self.assertEqual(set(self.digests()[0]), {"gemv.stock", "gemv.avx2", "gemv.wide", "topk.stock"})

    def test_what_moves_which_digest(self):
        gemv = {"gemv.stock", "gemv.avx2", "gemv.wide"}
        for name, expected in {
            "kernels/gemv/op.h": gemv,
            "kernels/gemv/stock.cu": gemv,          # without CUDA too: the same digest in every preset
            "kernels/base/device.cuh": gemv,
            "kernels/base/blocks.h": gemv,
            "kernels/base/blocks.cpp": gemv,        # the body of a declared function
            "kernels/base/tables.h": gemv,          # and what the body includes
            "cmake/codegen_flags.txt": gemv | {"topk.stock"},
            "variants/gemv/tile.cuh": {"gemv.avx2"},
            "variants/gemv/avx2.cu": {"gemv.avx2"},
            "variants/gemv/wide.cpp": {"gemv.wide"},
            "kernels/base/other.h": set(),
            "kernels/gemv/ref_test.cpp": set(),
            "variants/gemv/avx2_test.cpp": set(),
        }.items():
            with self.subTest(name):
                self.assertEqual(self.moved(name), (expected, True))
        for name in ("variants/gemv/avx2.md", "docs/index.md"):
            with self.subTest(name):
                self.assertEqual(self.moved(name), (set(), False))

    def test_explain_lists_the_files_and_the_digest_can_be_recomputed(self):
        done = self.run_script("explain", "gemv", "avx2")
        first, *rest = done.stdout.splitlines()
        rows = [line.split()[:2] for line in rest]
        self.assertIn("variants/gemv/tile.cuh", [p for _, p in rows])
        self.assertNotIn("variants/gemv/wide.cpp", [p for _, p in rows])
        lines = "".join(f"{sha}  {path}\n" for sha, path in rows)
        self.assertEqual(first.split()[0], hashlib.sha256(lines.encode()).hexdigest())
        self.assertEqual(first.split()[0], self.digests()[0]["gemv.avx2"])
        self.assertEqual(self.run_script("explain", "gemv", "nobody").returncode, 3)

    def test_an_unchanged_header_is_not_touched(self):
        stamp = self.header().stat().st_mtime_ns
        self.assertEqual(self.header().stat().st_mtime_ns, stamp)

    def test_without_git_and_stamp_the_commit_is_unknown_and_dirty(self):
        self.assertEqual(self.digests()[1][:2], ("unknown", "true"))

    def test_clean_means_that_the_sources_are_the_commits(self):
        self.write(".gitignore", "/build/\n")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        head = self.git("rev-parse", "HEAD")
        self.assertEqual(self.digests()[1][:2], (head, "false"))
        for name in ("docs/index.md", "results/card/x.jsonl"):
            self.write(name, "more\n")
            self.assertEqual(self.digests()[1][:2], (head, "false"), name)
        self.write("variants/gemv/untracked.cpp", "int u;\n")
        self.assertEqual(self.digests()[1][:2], (head, "true"))
        (self.root / "variants/gemv/untracked.cpp").unlink()
        (self.root / "variants/gemv/wide.cpp").unlink()
        self.assertEqual(self.digests()[1][:2], (head, "true"))

    def test_a_stamp_stands_in_for_git_and_refuses_other_sources(self):
        self.assertEqual(self.run_script("stamp").returncode, 3)
        self.write(".gitignore", "/build/\n")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")
        head = self.git("rev-parse", "HEAD")
        with_git = self.digests()
        self.assertEqual(self.run_script("stamp").returncode, 0)
        shutil.rmtree(self.root / ".git")
        self.assertEqual(self.digests(), with_git)
        self.assertEqual(self.digests()[1][:2], (head, "false"))
        args = ["header", "--out", self.root / "build/x.h", "--project-version", "1", "--compiler", "c", "--cuda", "n",
                "--build-type", "R"]
        for name, text, message in (("kernels/gemv/op.h", "changed\n", "kernels/gemv/op.h (changed)"),
                                    ("kernels/gemv/new.cpp", "new\n", "kernels/gemv/new.cpp (not in the stamp)"),
                                    ("kernels/topk/op.h", None, "kernels/topk/op.h (missing here)")):
            with self.subTest(name):
                path = self.root / name
                old = path.read_text() if path.exists() else None
                path.unlink(missing_ok=True)
                if text is not None:
                    self.write(name, text)
                done = self.run_script(*args)
                self.assertEqual(done.returncode, 3)
                self.assertIn(message, done.stderr)
                path.unlink(missing_ok=True)
                if old is not None:
                    self.write(name, old)
        (self.root / "build/stamp.json").write_text(json.dumps({"schema": "other"}))
        self.assertEqual(self.run_script(*args).returncode, 3)


if __name__ == "__main__":
    unittest.main()
