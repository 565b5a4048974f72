#!/usr/bin/env python3
"""Checks that the documents still tell the truth about the tree.

    scripts/check_docs.py [--root DIR]

Fails when a relative link of a tracked Markdown file leads nowhere (file or heading), when docs/traps.md names a test
that does not exist, and when a page quotes a record id that no file under results/ holds. Exit 0 or 1.
"""
import argparse
import pathlib
import re
import subprocess
import sys

FOLDERS = ("kernels", "variants", "parity", "bench", "traces", "replay", "engine", "docs", "scripts", "results")


def markdown_files(root):
    try:
        listed = subprocess.run(["git", "ls-files", "-z", "--", "*.md"], cwd=root, capture_output=True, check=True)
        names = [n for n in listed.stdout.decode().split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = []
    if names:
        return sorted(p for n in names if (p := root / n).exists())
    return sorted([*root.glob("*.md"), *(p for f in FOLDERS for p in (root / f).rglob("*.md"))])


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """Headings as the usual renderers name them: lower case, punctuation dropped, spaces to dashes."""
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", text, flags=re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip()
        found.add(plain.replace(" ", "-"))
    return found


def broken_links(path, root):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = path if not name else (path.parent / name)
        if not goal.exists():
            yield f"{path.relative_to(root)}: link to '{target}', which does not exist"
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text()):
            yield f"{path.relative_to(root)}: link to '{target}': no such heading"


def tests_of(root):
    """Every GoogleTest case and every CTest name of the tree."""
    found = set()
    for folder in FOLDERS:
        for source in (root / folder).rglob("*_test.cpp"):
            found.update(f"{suite}.{name}" for suite, name in
                         re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", source.read_text(), flags=re.M))
        for lists in (root / folder).rglob("CMakeLists.txt"):
            found.update(re.findall(r"add_test\(NAME\s+(\S+)", lists.read_text()))
    return found


def unknown_tests(root):
    page = root / "docs/traps.md"
    known = tests_of(root)
    rows = 0
    for line in page.read_text().splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) < 3 or not cells[0].isdigit():
            continue
        rows += 1
        names = re.findall(r"`(\w+\.\w+)`", cells[2])
        for name in names:
            if name not in known:
                yield f"docs/traps.md: trap {cells[0]} names the test {name}, which does not exist"
    if rows != 39:
        yield f"docs/traps.md: {rows} rows instead of 39"


def unknown_records(pages, root):
    """Record ids are 16 hexadecimal digits in backticks: the start of a stored record's record_sha256."""
    stored = set()
    for path in (root / "results").rglob("*.jsonl"):
        stored.update(re.findall(r'"record_sha256": *"([0-9a-f]{16})', path.read_text()))
    for page in pages:
        for record in sorted(set(re.findall(r"`([0-9a-f]{16})`", page.read_text()))):
            if record not in stored:
                yield f"{page.relative_to(root)}: record {record} is in no file under results/"


def main():
    parser = argparse.ArgumentParser(description="links, trap tests and quoted records")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    pages = markdown_files(root)
    if not pages:
        sys.exit("check_docs: no Markdown file found")
    wrong = [w for p in pages for w in broken_links(p, root)]
    wrong += unknown_tests(root)
    wrong += unknown_records(pages, root)
    for line in wrong:
        print(line)
    print(f"check_docs: {len(pages)} pages, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
