#!/usr/bin/env python3
"""Every rule of check_layers.py is broken once in a small tree and must be named; the sound tree must pass."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "check_layers.py"

SOUND = {
    "kernels/base/blocks.h": "#pragma once\n#include <span>\n",
    "kernels/base/env.cpp": '#include "kernels/base/blocks.h"\n#include <cstdlib>\nconst char* v = getenv("X");\n',
    "kernels/base/log.h": "#include <spdlog/spdlog.h>\n",
    "kernels/base/command_line.cpp": "#include <CLI/CLI.hpp>\n",
    "kernels/base/launch.cuh": "void f() { k<<<1, 1>>>(); }\n",
    "kernels/gemv/op.h": '#include "kernels/base/blocks.h"\n',
    "kernels/topk/op.h": '#include "kernels/base/blocks.h"\n',
    "variants/gemv/avx2.cpp": '#include "kernels/gemv/op.h"\n#include "variants/gemv/tile.cuh"\n',
    "variants/gemv/tile.cuh": "#include <cuda_fp16.h>\n",
    "variants/gemv/avx2_test.cpp": '#include <gtest/gtest.h>\n#include "gtest/gtest.h"\n#include <nlohmann/json.hpp>\n',
    "traces/trace.h": '// #include "engine/forward.h"\n#include "kernels/base/blocks.h"\n',
    "replay/replay.cpp": '#include "traces/trace.h"\n#include "kernels/gemv/op.h"\nauto s = "getenv <<<";\n',
    "engine/forward.h": '#include "traces/trace.h"\n',
    "engine/main/assay.cpp": '#include "engine/main/command.h"\n#include "bench/ab.h"\n',
    "engine/main/command.h": "/* getenv */ const char* r = R\"x(getenv(\"A\") \"<<<)x\"; char q = '\"'; // getenv\n",
    "bench/ab.h": '#include "build_id_data.h"\n',
}

BROKEN = [
    ("kernels/base/blocks.h", '#include "kernels/gemv/op.h"\n', 'may not include "kernels/gemv/op.h"'),
    ("kernels/gemv/ref.cpp", '#include "kernels/topk/op.h"\n', 'may not include "kernels/topk/op.h"'),
    ("kernels/gemv/ref.cpp", '#include "variants/gemv/tile.cuh"\n', "may not include"),
    ("variants/gemv/wide.cpp", '#include "kernels/topk/op.h"\n', "may not include"),
    ("variants/topk/wide.cpp", '#include "variants/gemv/tile.cuh"\n', "may not include"),
    ("engine/forward.cpp", '#include "variants/gemv/tile.cuh"\n', "may not include"),
    ("engine/main/cmd_x.cpp", '#include "variants/gemv/tile.cuh"\n', "may not include"),
    ("engine/forward.cpp", '#include "replay/replay.h"\n', "no file of the tree"),
    ("engine/forward.cpp", '#include "bench/ab.h"\n', 'may not include "bench/ab.h"'),
    ("engine/forward.cpp", '#include "engine/main/command.h"\n', "nobody outside includes engine/main/*"),
    ("traces/reader.cpp", '#include "kernels/gemv/op.h"\n', "may not include"),
    ("traces/reader.cpp", "#include <cuda_runtime.h>\n", "may not include <cuda_runtime.h>"),
    ("bench/run.cpp", '#include "engine/forward.h"\n', "may not include"),
    ("parity/run.cpp", '#include "bench/ab.h"\n', "may not include"),
    ("kernels/gemv/op.h", "#include <nlohmann/json.hpp>\n", "may not include <nlohmann/json.hpp>"),
    ("kernels/gemv/op.h", "#include <spdlog/spdlog.h>\n", "may not include <spdlog/spdlog.h>"),
    ("engine/main/cmd_x.cpp", "#include <CLI/CLI.hpp>\n", "may not include <CLI/CLI.hpp>"),
    ("replay/replay.cpp", 'int x;\nauto s = getenv("HOME");\n', "replay/replay.cpp:2: getenv"),
    ("variants/gemv/avx2.cu", "void g() { k<<<1, 2>>>(); }\n", "<<<>>>"),
    ("replay/replay.cpp", '#include "replay.h"\n', "included from the repository root"),
    ("engine/utils.h", "\n", "a name that says nothing"),
    ("scripts/helpers.py", "\n", "a name that says nothing"),
    ("kernels/common/op.h", "\n", "a name that says nothing"),
]


class CheckLayers(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, SCRIPT, "--root", folder], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

    def test_a_sound_tree_passes(self):
        code, text = self.run_on(SOUND)
        self.assertEqual((code, "0 faults" in text), (0, True), text)

    def test_every_broken_rule_is_named(self):
        for path, content, message in BROKEN:
            with self.subTest(path=path, content=content):
                code, text = self.run_on({**SOUND, path: content})
                self.assertEqual(code, 1, text)
                self.assertIn(message, text)
                self.assertIn(path.rsplit("/", 1)[0], text)

    def test_an_empty_tree_fails(self):
        code, _ = self.run_on({"docs/x.md": ""})
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()
