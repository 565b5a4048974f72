#!/usr/bin/env python3
"""A toy variant in a copy of the tree: every program that loops over variants has it, and nothing else was touched.

    scripts/new_variant_test.py [--work DIR] [--jobs N]     (a CTest entry with the label slow)

The copy is built without optimisation; a second run in the same folder finds its objects again.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OP, TOY, CUDA_OP, CUDA_TOY = "router_topk", "toy_order", "gemv_quant", "toy_tile"
SKIPPED = {".git", "build", "carry", "__pycache__"}


def copy_tree(target):
    """The sources as they are here, without what git ignores; files keep their times so that a rebuild is short."""
    kept = set()
    for directory, folders, names in os.walk(ROOT):
        here = pathlib.Path(directory)
        if here == ROOT:
            folders[:] = [f for f in folders if f not in SKIPPED]
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in names:
            source = here / name
            relative = source.relative_to(ROOT)
            kept.add(relative)
            to = target / relative
            stat = source.stat()
            if to.exists() and to.stat().st_mtime_ns == stat.st_mtime_ns and to.stat().st_size == stat.st_size:
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to)
    for relative in listing(target):
        if pathlib.Path(relative) not in kept:
            (target / relative).unlink()


def listing(root):
    """{path: hash} of the copy, without its build folder."""
    found = {}
    for directory, folders, names in os.walk(root):
        if pathlib.Path(directory) == root:
            folders[:] = [f for f in folders if f not in SKIPPED]
        for name in names:
            path = pathlib.Path(directory) / name
            found[path.relative_to(root).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run(*command, cwd, expect=0, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False,
                          env={**clean, **(env or {})})
    if done.returncode != expect:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
        raise SystemExit(f"FAIL: {' '.join(map(str, command))}: exit {done.returncode}, expected {expect}")
    return done.stdout + done.stderr


def expect(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        raise SystemExit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/toy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    tree = (args.work / "tree").resolve()
    copy_tree(tree)
    before = listing(tree)

    script = tree / "scripts/new_variant.py"
    run(sys.executable, script, OP, TOY, cwd=tree)
    run(sys.executable, script, CUDA_OP, CUDA_TOY, "--cuda", cwd=tree)
    for bad, why in ((["no_such_op", "x"], "valid are"), ([OP, "v2"], "mechanism"), ([OP, "Toy"], "no variant name"),
                     ([OP, TOY], "exists"), ([OP, "stock"], "mechanism")):
        expect(why in run(sys.executable, script, *bad, cwd=tree, expect=2), f"refuses {' '.join(bad)}")
    if shutil.which("clang-format"):
        made = [tree / f"variants/{OP}/{TOY}.cpp", tree / f"variants/{CUDA_OP}/{CUDA_TOY}.cpp",
                tree / f"variants/{CUDA_OP}/{CUDA_TOY}.cu"]
        run("clang-format", "--dry-run", "-Werror", *made, cwd=tree)
        expect(True, "what it writes is formatted")
    expect("**Prediction** Write this first" in (tree / f"variants/{OP}/{TOY}.md").read_text(), "the note asks for the prediction")

    build = tree / "build/host"
    run("cmake", "--preset", "host", "-DCMAKE_BUILD_TYPE=Debug", cwd=tree,
        env={"CCACHE_BASEDIR": str(tree)})
    run("cmake", "--build", build, "--target", "assay", f"parity_{OP}", f"parity_{CUDA_OP}", "-j", args.jobs, cwd=tree,
        env={"CCACHE_BASEDIR": str(tree)})
    expect(True, "compiles, warnings are errors")
    tool = build / "bin"

    report = json.loads(run(tool / f"parity_{OP}", "--variant", TOY, "--json", "-", cwd=tree, env={"ASSAY_LOG_LEVEL": "off"}))
    row = report["variants"][0]
    expect(row["variant"] == TOY and row["verdict"] == "pass" and row["totals"]["compared"] > 0,
           f"parity_{OP} compares {row['totals']['compared']} cases of it and it passes")
    expect(TOY in run(tool / f"parity_{OP}", "--list", cwd=tree), "parity lists it")
    expect(CUDA_TOY in run(tool / f"parity_{CUDA_OP}", "--list", cwd=tree), "and the GPU variant, not built here")
    run(tool / f"parity_{CUDA_OP}", "--backend", "cuda", "--variant", CUDA_TOY, cwd=tree, expect=77)
    expect(True, "which reports 77 on a machine without CUDA")
    expect(f"parity.{OP}.{TOY}" in run("ctest", "--test-dir", build, "-N", "-R", f"^parity.{OP}", cwd=tree), "CTest has its entry")

    catalog = json.loads(run(tool / "assay", "catalog", "--json", "-", cwd=tree, env={"ASSAY_LOG_LEVEL": "off"}))
    named = {(o["op"], v["name"]) for o in catalog["ops"] for v in o["variants"]}
    expect({(OP, TOY), (CUDA_OP, CUDA_TOY)} <= named, "the catalog has both")
    run(tool / "assay", "catalog", cwd=tree, env={f"ASSAY_{OP.upper()}": TOY})
    run(tool / "assay", "catalog", cwd=tree, expect=2, env={f"ASSAY_{OP.upper()}": "toy_ordre"})
    expect(True, "the op's switch takes it")
    expect(TOY in run(tool / "assay", "ab", "--op", OP, "--b", "no_such_variant", cwd=tree, expect=2), "ab offers it")

    run(tool / "assay", "catalog", "--markdown", "docs/knobs", cwd=tree)
    expect(f"`{TOY}`" in (tree / f"docs/knobs/{OP}.md").read_text(), "the knob page has it")
    after = listing(tree)
    changed = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    allowed = (f"variants/{OP}/", f"variants/{CUDA_OP}/", "docs/knobs/")
    expect(all(p.startswith(allowed) for p in changed), f"only the variants' folders and docs/knobs changed: {len(changed)} files")
    for page in ("index.md", f"{OP}.md", f"{CUDA_OP}.md"):
        expect(f"docs/knobs/{page}" in changed, f"docs/knobs/{page} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
