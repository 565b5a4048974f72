#!/usr/bin/env python3
"""Turns HTML documentation of free projects into training text, one section a line.

    scripts/train/extract_corpus.py --packages DIR --out corpus.jsonl

DIR holds one folder per Debian documentation package, as `apt-get download` and `dpkg-deb -x` leave them (README.md
lists them). A line of the output is {"project": .., "title": .., "text": ..}. Standard library only.
"""
import argparse
import gzip
import json
import os
import re
from html.parser import HTMLParser

# Package -> the project's name as the model will see it, and path fragments that hold no prose.
SOURCES = {
    "postgresql-doc-15": ("PostgreSQL", ()),
    "sqlite3-doc": ("SQLite", ()),
    "rust-doc": ("Rust", ("/src/", "/implementors", "all.html", "print.html", "/core/", "/alloc/", "core_arch", "/arch/")),
    "python3.11-doc": ("Python", ()),
    "nodejs-doc": ("Node.js", ()),
    "erlang-doc": ("Erlang", ()),
}
NO_PROSE = ("genindex", "release", "changelog", "changes_", "py-modindex", "search")
SKIPPED_TAGS = {"script", "style", "nav", "head", "footer", "button", "svg", "form"}
BLOCK_TAGS = {"p", "div", "li", "tr", "pre", "br", "ul", "ol", "table", "section", "dd", "dt", "blockquote", "h5", "h6"}
HEADING_TAGS = {"h1", "h2", "h3", "h4"}
SHORTEST_SECTION = 120       # characters; shorter ones are captions and stubs
LONGEST_PAGE = 3_000_000     # characters; longer ones are generated indexes
DUPLICATE_PREFIX = 400       # sections that start alike are the same section on two pages


class Sections(HTMLParser):
    """Collects (title, text) for each heading of a page; keeps line breaks inside <pre>, folds spaces elsewhere."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.sections = []
        self._title = ""
        self._text = []
        self._heading = None   # text parts of the heading being read, or None
        self._skipping = 0     # depth of tags whose content is not prose
        self._preformatted = 0

    def finish(self):
        text = re.sub(r"[ \t]+", " ", "".join(self._text))
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()
        self._text = []
        if len(text) >= SHORTEST_SECTION:
            self.sections.append((self._title, text))

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED_TAGS:
            self._skipping += 1
        if self._skipping:
            return
        if tag in HEADING_TAGS:
            self.finish()
            self._heading = []
        elif tag in BLOCK_TAGS:
            self._preformatted += tag == "pre"
            self._text.append("\n")

    def handle_endtag(self, tag):
        if tag in SKIPPED_TAGS and self._skipping:
            self._skipping -= 1
        if self._skipping:
            return
        if tag in HEADING_TAGS and self._heading is not None:
            self._title = re.sub(r"\s+", " ", "".join(self._heading)).strip(" ¶§#")
            self._heading = None
        elif tag == "pre" and self._preformatted:
            self._preformatted -= 1
            self._text.append("\n")
        elif tag == "p":
            self._text.append("\n")

    def handle_data(self, data):
        if self._skipping:
            return
        if self._heading is not None:
            self._heading.append(data)
        else:
            self._text.append(data if self._preformatted else re.sub(r"\s+", " ", data))


def pages(folder, excluded):
    for parent, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(parent, name)
            if os.path.islink(path) or not name.endswith((".html", ".htm", ".html.gz")):
                continue
            if any(part in path for part in excluded) or any(part in name for part in NO_PROSE):
                continue
            opener = gzip.open if name.endswith(".gz") else open
            with opener(path, "rt", errors="replace") as page:
                text = page.read(LONGEST_PAGE + 1)
            if len(text) <= LONGEST_PAGE:
                yield text


def main():
    parser = argparse.ArgumentParser(description="HTML documentation to training text")
    parser.add_argument("--packages", required=True, help="folder with one unpacked documentation package each")
    parser.add_argument("--out", required=True, help="JSONL file to write")
    args = parser.parse_args()
    seen = set()
    with open(args.out, "w") as out:
        for package, (project, excluded) in SOURCES.items():
            characters = sections = 0
            for html in pages(os.path.join(args.packages, package), excluded):
                page = Sections()
                page.feed(html)
                page.finish()
                for title, text in page.sections:
                    if text[:DUPLICATE_PREFIX] in seen:
                        continue
                    seen.add(text[:DUPLICATE_PREFIX])
                    title = re.sub(r"^\d+(\.\d+)*\.?\s*", "", title)[:120]
                    out.write(json.dumps({"project": project, "title": title, "text": text}, ensure_ascii=False) + "\n")
                    sections += 1
                    characters += len(text)
            print(f"{package}: {sections} sections, {characters} characters")


if __name__ == "__main__":
    main()
