#!/usr/bin/env python3
"""Holds the tree to the layers of the house: who may include whom, and four rules of the same kind.

Prints one line a fault (file:line: what) and exits 1, or says how many files it read. The tables below are the rules;
change them in a commit of their own, with the reason.
"""
import argparse
import fnmatch
import os
import pathlib
import re
import sys

# A file belongs to the first pattern that fits. {op} stands for one folder name and is the same on both sides.
# (files, what they may include by quotes)
LAYERS = [
    ("kernels/base/*", ["kernels/base/*"]),
    ("kernels/{op}/*", ["kernels/base/*", "kernels/{op}/*"]),
    ("variants/{op}/*", ["kernels/base/*", "kernels/{op}/*", "variants/{op}/*.cuh", "variants/{op}/*.h"]),
    ("traces/*", ["traces/*", "kernels/base/*"]),
    ("replay/*", ["replay/*", "traces/*", "kernels/*"]),
    ("parity/*", ["parity/*", "traces/*", "kernels/*"]),
    ("bench/*", ["bench/*", "traces/*", "kernels/*"]),
    ("engine/main/*", ["engine/*", "kernels/*", "traces/*", "replay/*", "parity/*", "bench/*"]),
    ("engine/*", ["engine/*", "kernels/*", "traces/*"]),
]
# Nothing outside includes these, whatever the table above says. (files included, files that may)
PRIVATE = [
    ("engine/main/*", ["engine/main/*"]),
    ("variants/*", ["variants/*"]),
]
# Written by the build into its own folder.
GENERATED = ["build_id_data.h", "schema_data.h", "analysis_code.h", "tier_texts.h"]

# Outside libraries: (header prefix, files that may include it). A library not named here may be included anywhere.
TESTS = "*_test.cpp"
LIBRARIES = [
    ("cuda", ["*.cu", "*.cuh", "kernels/base/cuda*"]),
    ("cublas", ["*.cu", "*.cuh", "kernels/base/cuda*"]),
    ("cupti", ["*.cu", "*.cuh", "kernels/base/cuda*", "bench/*"]),
    ("spdlog/", ["kernels/base/log.*", "engine/daemon/daemon_log.cpp"]),
    ("CLI/", ["kernels/base/command_line.cpp"]),
    ("nlohmann/json_fwd", ["*"]),
    ("nlohmann/", ["kernels/base/record.cpp", "kernels/base/json*.cpp", "kernels/base/catalog.cpp",
                   "kernels/base/proven.cpp", "parity/*.cpp",
                   "bench/*", "engine/main/*", "replay/*.cpp", "traces/*.cpp", "engine/*.cpp", TESTS,
                   "engine/chat_template.h", "engine/golden.h"]),  # few include these two, and their argument is JSON
    ("re2/", ["kernels/base/json_schema.cpp", "parity/*", "bench/*", "replay/*", "engine/*", TESTS]),
    ("boost/", ["engine/*", "kernels/base/simt/*"]),
    ("prometheus/", ["engine/*"]),
    ("gtest/", [TESTS, "*_testing.h"]),
    ("benchmark/", ["bench/*", "engine/daemon/fake/bench_*"]),
]

# (pattern in code without comments and strings, files that may, what to say)
TOKENS = [
    (re.compile(r"\b(secure_)?getenv\b"), ["kernels/base/env.cpp"],
     "getenv: only kernels/base/env.cpp reads the environment"),
    (re.compile(r"<<<"), ["kernels/base/launch.cuh"],
     "<<<>>>: kernels are launched through kernels/base/launch.cuh only"),
]

FORBIDDEN_NAMES = {"util", "utils", "common", "misc", "helper", "helpers"}
FOLDERS = ["kernels", "variants", "traces", "replay", "parity", "bench", "engine"]
NAMED_FOLDERS = FOLDERS + ["scripts", "docs", "cmake", "results"]
CODE = (".h", ".cuh", ".cpp", ".cu")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
# Comments, strings (raw ones too) and characters; what remains is code.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def fits(path, pattern, op=None):
    return fnmatch.fnmatchcase(path, pattern.replace("{op}", op or "?*"))


def layer_of(path):
    """(op or None, allowed patterns) of a file."""
    for pattern, allowed in LAYERS:
        if not fits(path, pattern):
            continue
        op = path.split("/")[1] if "{op}" in pattern else None
        if op is None or path.count("/") == 2:
            return op, allowed
    return None, None


def without(text):
    """The text with everything that is not code blanked, line numbers kept."""
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def check_file(root, path):
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    op, allowed = layer_of(path)
    if allowed is None:
        yield 1, "lies in no layer: scripts/check_layers.py does not know this folder"
        return
    line_of = lambda at: text.count("\n", 0, at) + 1
    # A comment may quote an include; only lines that survive without comments count. Strings must stay for this one.
    comments = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
    bare = comments.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    for match in INCLUDE.finditer(bare):
        ours, theirs = match.groups()
        line = line_of(match.start())
        if ours is not None:
            if ours in GENERATED:
                continue
            if any(ours.startswith(prefix) for prefix, _ in LIBRARIES if prefix.endswith("/")):
                ours, theirs = None, ours  # quotes or not, a library is a library
        if ours is not None:
            if not (root / ours).is_file():
                yield line, f'"{ours}" is no file of the tree: headers are included from the repository root'
                continue
            if not any(fits(ours, p, op) for p in allowed):
                yield line, f'may not include "{ours}": allowed are {", ".join(p.replace("{op}", op or "") for p in allowed)}'
                continue
            for private, users in PRIVATE:
                if fits(ours, private) and not any(fits(path, u) for u in users):
                    yield line, f'may not include "{ours}": nobody outside includes {private}'
        else:
            for prefix, users in LIBRARIES:
                if theirs.startswith(prefix):
                    if not any(fits(path, u) for u in users):
                        yield line, f"may not include <{theirs}>: allowed in {', '.join(users)}"
                    break
    code = without(text)
    for pattern, users, message in TOKENS:
        if any(fits(path, u) for u in users):
            continue
        for match in pattern.finditer(code):
            yield line_of(match.start()), message


def check(root):
    faults = []
    count = 0
    for folder in NAMED_FOLDERS:
        for directory, subfolders, names in os.walk(root / folder):
            subfolders[:] = sorted(s for s in subfolders if s != "__pycache__")
            here = pathlib.Path(directory)
            for name in sorted(subfolders + names):
                path = (here / name).relative_to(root).as_posix()
                if name.split(".")[0].lower() in FORBIDDEN_NAMES:
                    faults.append(f"{path}:1: a name that says nothing: name the idea or inline it")
            if folder not in FOLDERS:
                continue
            for name in sorted(names):
                if name.endswith(CODE):
                    path = (here / name).relative_to(root).as_posix()
                    count += 1
                    faults += [f"{path}:{line}: {what}" for line, what in check_file(root, path)]
    return faults, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Example: scripts/check_layers.py")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    args = parser.parse_args()
    faults, count = check(args.root)
    if count == 0:
        print(f"check_layers: no source file under {args.root}", file=sys.stderr)
        return 1
    for fault in faults:
        print(fault)
    print(f"check_layers: {count} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
