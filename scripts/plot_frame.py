"""What the plot programs share: their command line, and how a figure is framed and kept."""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def save(figure, path, dpi=100, without=("top",)):
    for ax in figure.axes:
        ax.spines[list(without)].set_visible(False)
    figure.savefig(path, dpi=dpi)
    plt.close(figure)


def run(usage, schema, draw):
    """DOCUMENT.json OUTDIR; draw(document, folder) makes the plots and returns the file to name. An exit code."""
    if len(sys.argv) != 3 or sys.argv[1] == "--help":
        print(usage, file=sys.stderr)
        return 0 if sys.argv[1:2] == ["--help"] else 2
    document = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if document.get("schema") != schema:
        print(f"{sys.argv[1]}: not of schema {schema}", file=sys.stderr)
        return 3
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    print(draw(document, folder))
    return 0
