#!/usr/bin/env python3
"""Checks that the documents still tell the truth about the tree.

    scripts/check_docs.py [--root DIR]

Fails when a relative link of a tracked Markdown file leads nowhere (file or heading), when docs/traps.md or
docs/daemon_tests.md names a test that does not exist, when the latter leaves out a promise or a case of the plan, and
when a page quotes a record id that no file under results/ holds. Exit 0 or 1.
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
            text = lists.read_text()
            found.update(re.findall(r"add_test\(NAME\s+(\S+)", text))
            found.update(re.findall(r"assay_slow_test\((\S+)", text))
        found.update(f"{source.stem}.smoke" for source in (root / folder).rglob("fuzz_*.cpp"))
        for source in (root / folder).rglob("*_test.py"):
            suite = ""
            for kind, name in re.findall(r"^(class|    def) (\w+)", source.read_text(), flags=re.M):
                if kind == "class":
                    suite = name
                elif name.startswith("test_"):
                    found.add(f"{suite}.{name}")
    modes = re.search(r"^MODES = \{(.*?)\}", (root / "engine/daemon/fake/daemon_load.py").read_text(), flags=re.S | re.M)
    found.update(f"daemon_load.py {mode}" for mode in re.findall(r'"(\w+)":', modes.group(1)))
    return found


# The cases of the plan by group; the numbers that are missing were merged into others.
DAEMON_CASES = {"P": [*range(1, 16)], "A": [1, 2, 3, 4, 5, 7, 9, 10, 11, 12], "B": [*range(1, 8)], "C": [*range(1, 19)],
                "D": [*range(1, 8)], "E": [*range(1, 5)], "F": [1, 2, 3, 4, *range(6, 15), 16, 17, 18, 19],
                "G": [1, 2, 3, 5, 6, 7, 8, 9], "H": [*range(1, 12), 13, 15, 16]}


def daemon_tests(root):
    known = tests_of(root)
    missing = [f"{group}{n}" for group, numbers in DAEMON_CASES.items() for n in numbers]
    for line in (root / "docs/daemon_tests.md").read_text().splitlines():
        row = re.match(r"\| ([A-HP]\d+)\b.*\| ([^|]*) \|$", line)
        if not row:
            continue
        case, tests = row.groups()
        where = f"docs/daemon_tests.md: {case}"
        if case not in missing:
            yield f"{where}: twice, or no case of the plan"
            continue
        missing.remove(case)
        names = re.findall(r"`([^`]+)`", tests)
        if not names and not re.match(r"needs a GPU|does not apply: ", tests):
            yield f"{where}: no test and no reason"
        for name in names:
            if name not in known:
                yield f"{where} names the test {name}, which does not exist"
    for case in missing:
        yield f"docs/daemon_tests.md: {case} is missing"


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
    parser = argparse.ArgumentParser(description="links, tests named by pages, quoted records")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root.resolve()
    pages = markdown_files(root)
    if not pages:
        sys.exit("check_docs: no Markdown file found")
    wrong = [w for p in pages for w in broken_links(p, root)]
    wrong += unknown_tests(root)
    wrong += daemon_tests(root)
    wrong += unknown_records(pages, root)
    for line in wrong:
        print(line)
    print(f"check_docs: {len(pages)} pages, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
