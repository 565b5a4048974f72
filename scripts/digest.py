#!/usr/bin/env python3
"""Build id and source digests (docs: `digest.py --help`).

header   writes build_id_data.h for kernels/base/build_id.cpp; run by every build, touches the file only when it changes
explain  prints the files behind one digest, each with its own hash and the file that pulled it in
stamp    writes build/stamp.json, which stands in for git on a machine that has the sources but no git

A digest depends on the bytes of repository files alone: not on the preset, the build folder or the presence of CUDA.
It covers, for one op and variant, the op's sources (.cpp and .cu), the variant's sources, every repository file that
they reach by a quoted include, the sources that implement a reached header (X.h brings X.cpp and X.cu, because a proof
depends on the body of `dequantize` as much as on its declaration), and the list of code-generation flags.
"""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

CODE_FOLDERS = ("kernels", "variants", "parity", "bench", "traces", "replay", "engine")
CODE_SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
BUILD_FILES = ("CMakeLists.txt", "CMakePresets.json", "scripts/digest.py")
FLAGS_FILE = "cmake/codegen_flags.txt"
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
STAMP = "build/stamp.json"


class Refused(Exception):
    pass


class Tree:
    """The repository's files, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self._bytes = {}
        self._sha = {}

    def exists(self, path):
        return (self.root / path).is_file()

    def content(self, path):
        if path not in self._bytes:
            self._bytes[path] = (self.root / path).read_bytes()
        return self._bytes[path]

    def sha256(self, path):
        if path not in self._sha:
            self._sha[path] = hashlib.sha256(self.content(path)).hexdigest()
        return self._sha[path]

    def glob(self, pattern):
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.glob(pattern) if p.is_file())

    def source_files(self):
        """Everything a build compiles or is configured by."""
        found = [p for p in BUILD_FILES if self.exists(p)]
        found += self.glob("cmake/*")
        for folder in CODE_FOLDERS:
            for directory, _, names in os.walk(self.root / folder):
                for name in names:
                    if name.endswith(CODE_SUFFIXES) or name == "CMakeLists.txt":
                        found.append((pathlib.Path(directory) / name).relative_to(self.root).as_posix())
        return sorted(set(found))

    def included(self, path):
        for match in INCLUDE.findall(self.content(path)):
            name = match.decode("utf-8", "replace")
            for base in ("", os.path.dirname(path)):
                candidate = os.path.normpath(os.path.join(base, name))
                if not candidate.startswith("..") and self.exists(candidate):
                    yield candidate
                    break

    def closure(self, roots):
        """{path: the file that brought it in, or None for a root}."""
        reached = {}
        queue = [(p, None) for p in roots]
        while queue:
            path, by = queue.pop(0)
            if path in reached:
                continue
            reached[path] = by
            queue += [(p, path) for p in self.included(path)]
            stem, suffix = os.path.splitext(path)
            if suffix in (".h", ".cuh"):
                queue += [(stem + s, path) for s in (".cpp", ".cu") if self.exists(stem + s)]
        return reached

    def ops(self):
        return [os.path.basename(os.path.dirname(p)) for p in self.glob("kernels/*/op.h")]

    def variants(self, op):
        """stock, then the stems under variants/<op>."""
        stems = {os.path.splitext(os.path.basename(p))[0] for p in self.glob(f"variants/{op}/*.cpp")}
        return ["stock"] + sorted(s for s in stems if not s.endswith("_test"))

    def parts(self, op, variant):
        """Every file behind the digest of op and variant: {path: brought in by}."""
        roots = [f"kernels/{op}/op.h"]
        roots += [p for s in ("cpp", "cu") for p in self.glob(f"kernels/{op}/*.{s}") if not p.endswith(("_test.cpp", "_bench.cpp"))]
        if variant != "stock":
            roots += [p for s in ("cpp", "cu") for p in self.glob(f"variants/{op}/{variant}.{s}")]
        reached = self.closure(roots)
        reached[FLAGS_FILE] = None
        return reached

    def digest(self, paths):
        """SHA-256 over the lines that `sha256sum` prints for the sorted paths: anyone can recompute it."""
        lines = "".join(f"{self.sha256(p)}  {p}\n" for p in sorted(paths))
        return hashlib.sha256(lines.encode()).hexdigest()


def git(root, *args):
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def git_state(tree):
    """(commit, clean) from git, or None when the tree is not a checkout of its own."""
    try:
        top = git(tree.root, "rev-parse", "--show-toplevel")
        if top is None or os.path.realpath(top.strip()) != os.path.realpath(tree.root):
            return None
        commit = git(tree.root, "rev-parse", "HEAD")
        status = git(tree.root, "--no-optional-locks", "status", "--porcelain", "-z", "--no-renames", "-uall")
    except OSError:
        return None  # git is not installed
    if commit is None or status is None:
        return None
    changed = {entry[3:] for entry in status.split("\0") if entry}
    # Clean means: what is compiled is exactly what the commit holds. Data and prose do not enter a binary.
    sources = set(tree.source_files())
    clean = not any(p in sources or is_source(p) for p in changed)
    return commit.strip(), clean


def is_source(path):
    """Whether a (perhaps deleted) path would be among source_files."""
    if path in BUILD_FILES or path.startswith("cmake/"):
        return True
    return path.split("/")[0] in CODE_FOLDERS and (
        path.endswith(CODE_SUFFIXES) or path.endswith("/CMakeLists.txt"))


def stamp_state(tree):
    """(commit, clean) from build/stamp.json, or None without one. Refuses a stamp of other sources."""
    path = tree.root / STAMP
    if not path.is_file():
        return None
    try:
        stamp = json.loads(path.read_text())
        if stamp["schema"] != "assay-stamp" or not isinstance(stamp["files"], dict):
            raise KeyError("schema")
        commit, clean, files = stamp["commit"], stamp["clean"], stamp["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{STAMP}: not a stamp ({error}); run scripts/stamp where git is") from error
    here = {p: tree.sha256(p) for p in tree.source_files()}
    wrong = [f"{p} (changed)" for p in here if p in files and files[p] != here[p]]
    wrong += [f"{p} (not in the stamp)" for p in here if p not in files]
    wrong += [f"{p} (missing here)" for p in files if p not in here]
    if wrong:
        raise Refused(f"{STAMP}: the sources differ from the stamped ones: {', '.join(sorted(wrong)[:8])}"
                      f"{', ..' if len(wrong) > 8 else ''}; run scripts/stamp where git is")
    return commit, bool(clean)


def tree_state(tree):
    """(commit, clean). A stamp of these very sources speaks for them where git does not: without git, and in a copy that git
    takes for an edited checkout of another commit."""
    found = git_state(tree)
    if found and found[1]:
        return found
    try:
        return stamp_state(tree) or found or ("unknown", False)
    except Refused:
        if found:
            return found
        raise


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_if_different(path, text):
    path = pathlib.Path(path)
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + f".tmp{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def header(tree, args):
    commit, clean = tree_state(tree)
    digests = []
    used = set()
    for op in tree.ops():
        for variant in tree.variants(op):
            parts = sorted(tree.parts(op, variant))
            used.update(parts)
            digests.append((op, variant, tree.digest(parts), parts))
    index = {path: i for i, path in enumerate(sorted(used))}
    out = ["// Generated by scripts/digest.py at build time. Do not edit.", "#pragma once", "namespace assay {",
           "inline constexpr BuildId kBuildIdData{"
           + ", ".join([quoted(args.project_version), quoted(commit), "false" if clean else "true",
                        quoted(tree.digest(tree.source_files())), quoted(args.compiler), quoted(args.cuda),
                        quoted(args.build_type)]) + "};",
           "inline constexpr SourceFile kSourceFiles[] = {"]
    out += [f"    {{{quoted(p)}, {quoted(tree.sha256(p))}}}," for p in sorted(used)]
    out.append("};")
    for i, (_, _, _, parts) in enumerate(digests):
        out.append(f"inline constexpr std::uint16_t kParts{i}[] = {{{', '.join(str(index[p]) for p in parts)}}};")
    out.append("inline constexpr SourceDigest kSourceDigests[] = {")
    out += [f"    {{{quoted(op)}, {quoted(variant)}, {quoted(sha)}, kParts{i}}},"
            for i, (op, variant, sha, _) in enumerate(digests)]
    out += ["};", "}  // namespace assay", ""]
    write_if_different(args.out, "\n".join(out))


def explain(tree, args):
    if args.op not in tree.ops():
        raise Refused(f"no op '{args.op}': valid are {', '.join(tree.ops())}")
    if args.variant not in tree.variants(args.op):
        raise Refused(f"{args.op} has no variant '{args.variant}': valid are {', '.join(tree.variants(args.op))}")
    parts = tree.parts(args.op, args.variant)
    print(f"{tree.digest(parts)}  {args.op} {args.variant}: {len(parts)} files")
    for path in sorted(parts):
        print(f"  {tree.sha256(path)}  {path}" + (f"  (from {parts[path]})" if parts[path] else ""))


def stamp(tree, args):
    state = git_state(tree)
    if state is None:
        raise Refused("a stamp is made where git is: this folder is not the top of a git checkout")
    commit, clean = state
    document = {"schema": "assay-stamp", "schema_version": "1.0.0", "commit": commit, "clean": clean,
                "files": {p: tree.sha256(p) for p in tree.source_files()}}
    path = tree.root / STAMP
    write_if_different(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"{STAMP}: commit {commit[:12]}, {'clean' if clean else 'NOT clean'}, {len(document['files'])} files")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Example: scripts/digest.py explain gemv_quant stock")
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, help="repository root")
    commands = parser.add_subparsers(dest="command", required=True)
    h = commands.add_parser("header")
    h.add_argument("--out", required=True)
    for name in ("project-version", "compiler", "cuda", "build-type"):
        h.add_argument("--" + name, required=True)
    h.set_defaults(run=header)
    e = commands.add_parser("explain")
    e.add_argument("op")
    e.add_argument("variant", nargs="?", default="stock")
    e.set_defaults(run=explain)
    commands.add_parser("stamp").set_defaults(run=stamp)
    args = parser.parse_args()
    try:
        args.run(Tree(args.root), args)
    except Refused as refused:
        print(f"digest: {refused}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
