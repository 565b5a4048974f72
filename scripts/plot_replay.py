#!/usr/bin/env python3
"""Plots of a replay, from its JSON alone.

    scripts/plot_replay.py REPLAY.json OUTDIR

replay.png: hit rate by cache size, misses of a (layer, step) at the largest size, and the share of the gap between LRU
and Belady that each policy closes. Needs numpy and matplotlib.
"""
import sys

import plot_frame  # before pyplot: it needs no display
import matplotlib.pyplot as plt
import numpy as np

ORACLES = ("belady", "static-hindsight")


def is_oracle(policy):
    return policy.startswith(ORACLES)


def by_policy(results):
    found = {}
    for row in results:
        found.setdefault(row["policy"], []).append(row)
    return {p: sorted(rows, key=lambda r: r["slots"]) for p, rows in found.items()}


def style(policy, index):
    if policy == "belady":
        return {"color": "black", "linestyle": "--", "linewidth": 1.6}
    return {"color": f"C{index % 10}", "linestyle": ":" if is_oracle(policy) else "-", "linewidth": 1.8}


def plot_hit_rate(ax, rows_of):
    for i, (policy, rows) in enumerate(rows_of.items()):
        size = [100 * r["residency"] for r in rows]
        rate = [100 * r["hit_rate"] for r in rows]
        ax.plot(size, rate, marker="o", markersize=4, label=policy, **style(policy, i))
    sizes = sorted({100 * r["residency"] for rows in rows_of.values() for r in rows})
    ax.set_xticks(sizes, [f"{s:g}" for s in sizes])
    ax.set_xlabel("experts that fit the cache, %")
    ax.set_ylabel("accesses served by the cache, %")
    ax.set_title("hit rate by size")
    ax.legend(frameon=False)


def plot_misses(ax, rows_of):
    largest = max(r["slots"] for rows in rows_of.values() for r in rows)
    shown = [(p, r) for p, rows in rows_of.items() for r in rows if r["slots"] == largest]
    width = 0.8 / len(shown)
    top = max(int(np.flatnonzero(r["histogram"]).max(initial=0)) for _, r in shown)
    for i, (policy, row) in enumerate(shown):
        counts = np.array(row["histogram"][: top + 1], dtype=float)
        share = 100 * counts / max(counts.sum(), 1)
        color = style(policy, list(rows_of).index(policy))["color"]
        ax.bar(np.arange(top + 1) + (i - (len(shown) - 1) / 2) * width, share, width, label=policy, color=color)
    ax.set_xticks(range(top + 1))
    ax.set_xlabel("missing experts")
    ax.set_ylabel("(layer, step) pairs, %")
    residency = 100 * next(r["residency"] for _, r in shown)
    ax.set_title(f"misses a layer waits for, at {residency:g} %")
    ax.legend(frameon=False)


def plot_gap(ax, rows_of):
    policies = [p for p in rows_of if p not in ("lru", "belady") and any("gap_closed" in r for r in rows_of[p])]
    sizes = sorted({r["residency"] for p in policies for r in rows_of[p]})
    if not policies:
        ax.text(0.5, 0.5, "needs lru, belady and another policy", ha="center", va="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    width = 0.8 / len(policies)
    for i, policy in enumerate(policies):
        at, share, low, high = [], [], [], []
        for row in rows_of[policy]:
            if row.get("gap_closed") is None:
                continue
            at.append(sizes.index(row["residency"]) + (i - (len(policies) - 1) / 2) * width)
            share.append(100 * row["gap_closed"])
            lo, hi = row.get("gap_closed_interval") or (None, None)
            low.append(0 if lo is None else max(0.0, share[-1] - 100 * lo))
            high.append(0 if hi is None else max(0.0, 100 * hi - share[-1]))
        color = style(policy, list(rows_of).index(policy))["color"]
        ax.bar(at, share, width, label=policy, color=color, yerr=[low, high], error_kw={"elinewidth": 1})
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(sizes)), [f"{100 * s:g}" for s in sizes])
    ax.set_xlabel("experts that fit the cache, %")
    ax.set_ylabel("of the way from LRU to Belady, %")
    ax.set_title("gap closed (95 % over conversations)")
    ax.legend(frameon=False)


def draw(document, out):
    results = [r for r in document["results"] if r["mode"] == document["results"][0]["mode"]]
    partition = results[0]["partition"]
    rows_of = by_policy([r for r in results if r["partition"] == partition])
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    plot_hit_rate(axes[0], rows_of)
    plot_misses(axes[1], rows_of)
    plot_gap(axes[2], rows_of)
    for ax in axes:
        ax.grid(axis="y", alpha=0.25)
    trace = document["trace"]
    label = f"{trace['label']}: " if trace.get("label") else ""
    figure.suptitle(
        f"{label}{trace['layers']} layers x {trace['experts']} experts, top-{trace['top_k']}, {trace['steps']} steps, "
        f"{trace['conversations']} conversations; {results[0]['mode']} mode, {partition} cache",
        fontsize=11,
    )
    plot_frame.save(figure, out / "replay.png", dpi=110, without=("top", "right"))
    return out / "replay.png"


if __name__ == "__main__":
    sys.exit(plot_frame.run(__doc__, "assay-replay", draw))
