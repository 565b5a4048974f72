"""What the tests of the program `assay` share: `import assay_testing` and end in `assay_testing.main()`."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = None


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)


def line_of(record):
    """A record as the program writes it."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n"


class InFolder(unittest.TestCase):
    """Each test has an empty folder, self.path."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)


def main():
    global PROGRAM
    parser = argparse.ArgumentParser()
    parser.add_argument("--assay", required=True, help="the program")
    options, rest = parser.parse_known_args()
    PROGRAM = options.assay
    unittest.main(argv=[sys.argv[0], *rest])
