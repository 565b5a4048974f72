#!/usr/bin/env python3
"""Writes a variant that compiles and passes parity at once, by handing its work to stock; the author replaces the body.

variants/OP/NAME.cpp   the declaration (and the host version)
variants/OP/NAME.cu    the GPU version, with --cuda
variants/OP/NAME.md    the note, which asks for the prediction first

Nothing else has to be edited: the build finds the file by its name, and parity, bench, catalog, the switch and the knob
page are loops over what it declares.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMPTY_NAMES = re.compile(r"^(v\d+|new|fast(er)?|opt(imi[sz]ed)?|better|improved|my|test|tmp)$")


class Refused(Exception):
    pass


def op_types(root):
    """{op: contract type} from the one line that each op has."""
    return dict(re.findall(r"^assay_op\((\w+) (\w+)", (root / "kernels/CMakeLists.txt").read_text(), re.M))


def column(stock, name):
    """What follows the function in stock's column, or None without such a column: ".host_sync = true"."""
    match = re.search(r"\.%s\s*=\s*ASSAY_(?:HOST|LAUNCH)\(((?:[^()]|\([^()]*\))*)\)" % name, stock)
    if match is None:
        return None
    return [part.strip() for part in match.group(1).split(",")[1:]]


def promised(stock, flag):
    return "true" if re.search(r"\.%s\s*=\s*true" % flag, stock) else "false"


def declaration(op, kind, name, stock, cuda):
    host = column(stock, "host")
    flags = []
    scratch = ""
    if cuda:
        extra = column(stock, "cuda")
        flags = [part for part in extra if part.endswith("= true")]
        if any(part.startswith(".workspace_bytes") for part in extra):
            flags.insert(0, ".workspace_bytes = scratch_bytes")
            scratch = f"""
std::size_t scratch_bytes(const {kind}::Shape& s) {{
  return workspace_bytes(*variants<{kind}>()[0].variant, s, Backend::kCuda);
}}
"""
    if not cuda and any(part.startswith(".workspace_bytes") for part in host):
        flags.insert(0, ".workspace_bytes = scratch_bytes")
        scratch = f"""
std::size_t scratch_bytes(const {kind}::Shape& s) {{
  return workspace_bytes(*variants<{kind}>()[0].variant, s, Backend::kHost);
}}
"""
    body = "" if cuda else f"""
// Starts as stock. Replace the body; parity_{op} --variant {name} judges what you put here.
void run_{name}(const {kind}::Shape& s, const {kind}::Args& a, Workspace w, Stream stream) {{
  variants<{kind}>()[0].variant->host.fn(s, a, w, stream);
}}
"""
    function = f"launch_{name}" if cuda else f"run_{name}"
    declare = f"\nvoid launch_{name}(const {kind}::Shape&, const {kind}::Args&, Workspace, Stream);\n" if cuda else ""
    launch = ("ASSAY_LAUNCH(" if cuda else "ASSAY_HOST(") + ", ".join([function] + flags) + ")"
    return f"""#include "kernels/{op}/op.h"

namespace assay {{
namespace {{
{body}{scratch}
// Null: takes every legal shape. Else the reason in words, each with a literal test in {name}_test.cpp.
Why ineligible(const {kind}::Shape&, const DeviceInfo&) {{ return nullptr; }}

}}  // namespace
{declare}
ASSAY_VARIANT({kind}, {name}){{
    .summary = "starts as stock: say the mechanism here, in one line",
    .stage = Stage::kTrial,
    .exactness = Exactness::kBitwise,
    .deterministic = {promised(stock, "deterministic")},
    .batch_invariant = {promised(stock, "batch_invariant")},
    .ineligible = ineligible,
    .{"cuda" if cuda else "host"} = {launch}}};

}}  // namespace assay
"""


def kernel(op, kind, name):
    return f"""// One line: the formula with shapes.
//
// Who owns which output (grid, block, warp, lane); shared memory in bytes and the occupancy assumed; the bound (bytes or
// flops) and why this is faster; preconditions, equal to `ineligible`.
#include "kernels/{op}/op.h"

namespace assay {{

// Starts as stock. Kernels go into an unnamed namespace and are started by launch() of kernels/base/launch.cuh.
void launch_{name}(const {kind}::Shape& s, const {kind}::Args& a, Workspace w, Stream stream) {{
  variants<{kind}>()[0].variant->cuda.fn(s, a, w, stream);
}}

}}  // namespace assay
"""


def note(op, name):
    return f"""# {op}: {name}

**Status** open.

**Question** What is to be found out?

**Prediction** Write this first, and commit it before the first timing: a number and its reason (bytes moved, operations saved).

**Tried** Nothing yet: the variant hands its work to stock.

**Result** No record yet.

**Why** Not profiled yet.

**Decision** Trial: opt-in, until a record exists.

**Reopen if** To be said with the decision.
"""


def formatted(text, path):
    tool = shutil.which("clang-format")
    if tool is None:
        return text
    done = subprocess.run([tool, f"--assume-filename={path}"], input=text, capture_output=True, text=True, check=False,
                          cwd=ROOT)
    return done.stdout if done.returncode == 0 else text


def create(root, op, name, cuda):
    kinds = op_types(root)
    if op not in kinds:
        raise Refused(f"no op '{op}': valid are {', '.join(kinds)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name.endswith("_test"):
        raise Refused(f"'{name}' is no variant name: lower case, digits and underscores, not ending in _test")
    if name == "stock" or EMPTY_NAMES.match(name):
        raise Refused(f"'{name}' says nothing about the mechanism: name it like avx2, split_kv, warp_radix")
    stock = (root / "kernels" / op / "stock.cpp").read_text()
    if column(stock, "cuda" if cuda else "host") is None:
        raise Refused(f"{op} has no {'CUDA' if cuda else 'host'} stock to start from")
    folder = root / "variants" / op
    files = {folder / f"{name}.cpp": declaration(op, kinds[op], name, stock, cuda), folder / f"{name}.md": note(op, name)}
    if cuda:
        files[folder / f"{name}.cu"] = kernel(op, kinds[op], name)
    taken = [p for suffix in ("cpp", "cu", "md") if (p := folder / f"{name}.{suffix}").exists()]
    if taken:
        raise Refused(f"{taken[0].relative_to(root)} exists")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text if path.suffix == ".md" else formatted(text, path.name))
    return sorted(p.relative_to(root).as_posix() for p in files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Example: scripts/new_variant.py gemv_quant split_rows")
    parser.add_argument("op")
    parser.add_argument("name", help="the mechanism, like avx2 or split_kv")
    parser.add_argument("--cuda", action="store_true", help="a GPU variant: adds NAME.cu")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        files = create(args.root, args.op, args.name, args.cuda)
    except Refused as refused:
        print(f"new_variant: {refused}", file=sys.stderr)
        return 2
    print("wrote " + ", ".join(files))
    print(f"""next: write the prediction into variants/{args.op}/{args.name}.md and commit it, then
  cmake --build --preset host && build/host/bin/parity_{args.op} --variant {args.name}
  build/host/bin/assay catalog --markdown docs/knobs""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
