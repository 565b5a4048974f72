#!/usr/bin/env python3
"""Pages and plots of stored A/B records, from the records alone.

    scripts/plot_ab.py REPORT.json OUTDIR

REPORT.json is the list that `assay report` writes after it has verified every record; that command is the usual caller.
OUTDIR gets index.md (all comparisons, forest.png, aa_null.png, roofline.png) and one page and PNG for each comparison.
Needs numpy and matplotlib.
"""
import json
import math
import pathlib
import sys

import plot_frame  # before pyplot: it needs no display
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

A, B, NULL = "#4c72b0", "#dd8452", "#9a9a9a"
GAIN, LOSS, OPEN = "#2a7f4f", "#b5322c", "#6b6b6b"  # colours of a verdict
WORDS = {"ADOPT": GAIN, "STACK-MEMBER": GAIN, "REJECT": LOSS, "INVALID": LOSS}


def load(report):
    """Each listed record with what the program said about it; the file is read once."""
    lines, out = {}, []
    for row in report["records"]:
        if row["file"] not in lines:
            lines[row["file"]] = pathlib.Path(row["file"]).read_text().splitlines()
        record = json.loads(lines[row["file"]][row["line"] - 1])
        out.append({**row, "record": record})
    return out


def body(record):
    return record["plan"]["body"]


def name_of(record):
    plan = body(record)
    arm = plan["b"] if plan["a"] == "stock" else f"{plan['b']} against {plan['a']}"
    numerics = {t["id"].rsplit("_", 1)[-1] for t in plan["tiers"]} & {"exact", "fast"}
    return f"{plan['op']} / {arm}" + (f" ({', '.join(sorted(numerics))})" if numerics else "")


def color_of(record):
    return WORDS.get(record["verdict"]["word"], OPEN)


def percent(log_ratio):
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def ratio_axis(ax, values):
    """A log axis of ratios with the line at 1; ticks in plain figures."""
    values = [v for v in values if v and v > 0] + [1.0]
    low, high = min(values), max(values)
    span = max(math.log(high / low), 0.02)
    ax.set_xscale("log")
    ax.set_xlim(low * math.exp(-0.08 * span), high * math.exp(0.12 * span))
    ax.axvline(1.0, color="black", linewidth=1.0, zorder=1)
    if high / low < 3:
        # A narrow span has no power of ten in it.
        step = next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 7)
        ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
    else:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def forest(ax, rows, bar=None, floor=None):
    """rows: (label, middle, low, high, color); low and high None where there is no interval. First row on top."""
    for y, (label, middle, low, high, color) in enumerate(rows):
        if low is not None:
            ax.plot([low, high], [y, y], color=color, linewidth=2.2, solid_capstyle="butt", zorder=3)
            for end in (low, high):
                ax.plot([end, end], [y - 0.16, y + 0.16], color=color, linewidth=1.4, zorder=3)
        ax.plot([middle], [y], "s", color=color, markersize=5.5, zorder=4)
    ratio_axis(ax, [v for row in rows for v in row[1:4]])
    for at, style in ((bar, "--"), (floor, ":")):
        if at:
            ax.axvline(at, color=NULL, linewidth=1.0, linestyle=style, zorder=1)
    ax.set_yticks(range(len(rows)), [r[0] for r in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="x", alpha=0.25)


def tier_rows(record):
    plan, analysis = body(record), record["analysis"]
    rows = []
    aa = record["aa"]
    if aa["centre"] is not None:
        sd = aa["sd"]
        low, high = (math.exp(aa["centre"] - 2 * sd), math.exp(aa["centre"] + 2 * sd)) if sd is not None else (None, None)
        rows.append((f"A against A, {aa['pool']} pairs: centre ± 2 sd", math.exp(aa["centre"]), low, high, NULL))
    if analysis["estimate"] is not None:
        low, high = analysis["interval"] or (None, None)
        level = f", {100 * analysis['level']:.1f} % interval" if analysis["level"] else ", no interval"
        rows.append((f"all tiers{level}", analysis["speedup"], None if low is None else math.exp(low),
                     None if high is None else math.exp(high), color_of(record)))
    for t in analysis["tiers"]:
        low, high = t["interval"] or (None, None)
        guard = f" [{t['guard']}]" if t["guard"] else ""
        rows.append((f"{t['id']}{guard}", t["median_ratio"], low, high, LOSS if t["guard"] == "FAIL" else B))
    return rows, plan["bars"]["effect"], plan["bars"]["tier_min"]


def busy(samples, threads):
    """Seconds of a call in each block, as bench/analysis.cpp reckons them: waiting for a core is no work of one thread."""
    out = []
    for wall, cpu, wait, calls in zip(samples["wall"], samples["cpu"], samples["wait"], samples["calls"]):
        if threads == 1:
            wall -= min(wait, max(0.0, wall - cpu))
        out.append(wall / calls)
    return out


def arm_codes(record):
    return {arm["code"]: arm["label"] for arm in record["arms"]}


def plot_slots(axes, record):
    """Throughput by run order, each tier against its own median, and what the machine did meanwhile."""
    ax, below = axes
    plan, codes = body(record), arm_codes(record)
    tiers = [t["id"] for t in plan["tiers"]]
    of_arm = {"A": {t: [] for t in tiers}, "B": {t: [] for t in tiers}}
    for run in record["runs"]:
        label = "A" if run["kind"] == "aa" else codes[run["arm"]]
        for t in tiers:
            if run["samples"].get(t, {}).get("wall"):
                of_arm[label][t].append((run["slot"], float(np.median(busy(run["samples"][t], plan["threads"]))), run["status"], run["kind"]))
    markers = "osD^vP"
    for label, color in (("A", A), ("B", B)):
        for i, t in enumerate(tiers):
            points = of_arm[label][t]
            if not points:
                continue
            middle = np.median([v for _, v, status, _ in points if status == "ok"] or [points[0][1]])
            x = [p[0] for p in points]
            y = [100 * (middle / p[1] - 1) for p in points]
            filled = [color if p[2] == "ok" and p[3] == "ab" else "white" for p in points]
            ax.scatter(x, y, s=22, marker=markers[i % len(markers)], c=filled, edgecolors=color, linewidths=1.0, zorder=3)
    for label, color, text in (("A", A, plan["a"]), ("B", B, plan["b"])):
        ax.scatter([], [], s=22, c=color, label=f"{label}: {text}")
    ax.scatter([], [], s=22, c="white", edgecolors="black", label="burn-in, A/A or set aside")
    for i, t in enumerate(tiers):
        ax.scatter([], [], s=22, marker=markers[i % len(markers)], c="white", edgecolors=NULL, label=t)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_ylabel("speed against the\narm's own median, %")
    ax.set_title("slots: runs in the order they were made")
    ax.legend(frameon=False, fontsize=8, ncols=1, loc="upper left", bbox_to_anchor=(1.005, 1.0))
    ax.grid(axis="y", alpha=0.25)
    slots, mhz, steal, watts = [], [], [], []
    for run in record["runs"]:
        gpu, host = run.get("gpu"), run.get("host")
        after = gpu["after"] if gpu and isinstance(gpu["after"], dict) else {}  # words where the card does not say
        slots.append(run["slot"])
        mhz.append(after.get("sm_mhz", math.nan) if gpu else (float(np.mean(host["cpu_mhz"])) if host else math.nan))
        watts.append(after.get("power_w", math.nan))
        steal.append(host["steal_s"] if host else math.nan)
    order = np.argsort(slots)
    has_gpu = any(not math.isnan(w) for w in watts)
    below.plot(np.array(slots)[order], np.array(mhz)[order], color=OPEN, linewidth=1.2)
    below.set_ylabel("SM MHz" if has_gpu else "core MHz", color=OPEN)
    below.ticklabel_format(axis="y", useOffset=False)
    below.yaxis.set_major_locator(MaxNLocator(3))
    other = below.twinx()
    other.plot(np.array(slots)[order], np.array(watts if has_gpu else steal)[order], color=LOSS, linewidth=1.0)
    other.set_ylabel("W" if has_gpu else "stolen, s", color=LOSS)
    other.spines["top"].set_visible(False)
    other.yaxis.set_major_locator(MaxNLocator(3))
    below.set_xlabel("slot (process start)")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_pairs(ax, record):
    a = record["analysis"]
    if not a["d"]:
        ax.text(0.5, 0.5, "no complete pair", ha="center", va="center", transform=ax.transAxes)
        return
    ratio = np.exp(a["d"])
    x = np.arange(1, len(ratio) + 1)
    ax.vlines(x, a["speedup"], ratio, color=NULL, linewidth=0.8, zorder=1)
    for sign, marker, text in ((1, "o", "A ran first"), (-1, "D", "B ran first")):
        at = [i for i, o in enumerate(a["o"]) if o == sign]
        ax.scatter(x[at], ratio[at], marker=marker, s=34, color=B if sign > 0 else A, zorder=3, label=text)
    if a["interval"]:
        ax.axhspan(math.exp(a["interval"][0]), math.exp(a["interval"][1]), color=color_of(record), alpha=0.12, zorder=0)
    ax.axhline(a["speedup"], color=color_of(record), linewidth=1.2, label=f"estimate x{a['speedup']:.4g}")
    low, high = min(ratio.min(), a["speedup"]), max(ratio.max(), a["speedup"])
    if low < 1.15 and high > 0.87:  # else the line at 1 would squeeze the pairs into a stripe
        ax.axhline(1.0, color="black", linewidth=1.0)
    ax.set_xlabel("pair, in run order")
    ax.set_ylabel("A's time over B's")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.set_title("pairs: each against its own partner")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(axis="y", alpha=0.25)


def plot_null(ax, differences, estimate, title):
    """Equal arms compared: what a difference of nothing looks like here, and where the estimate lies."""
    if len(differences) < 3:
        ax.text(0.5, 0.5, f"{len(differences)} A/A pairs: too few to draw", ha="center", va="center", transform=ax.transAxes)
        ax.set_title(title)
        ax.set_axis_off()
        return
    d = 100 * np.expm1(np.array(differences))
    ax.hist(d, bins=max(5, min(40, int(2 * math.sqrt(len(d))) + 1)), color=NULL, alpha=0.55, edgecolor="white")
    ax.axvline(0, color="black", linewidth=1.0)
    for x in (np.mean(d) - 2 * np.std(d, ddof=1), np.mean(d) + 2 * np.std(d, ddof=1)):
        ax.axvline(x, color=OPEN, linewidth=0.9, linestyle=":")
    if estimate is not None:
        at = 100 * math.expm1(estimate)
        reach = 1.6 * max(abs(d).max(), 1e-6)
        if abs(at) <= reach:
            ax.axvline(at, color=B, linewidth=2, label=f"this estimate, {at:+.2f} %")
            ax.legend(frameon=False, fontsize=8)
        else:
            ax.text(0.98, 0.95, f"this estimate, {at:+.4g} %,\nlies far outside", ha="right", va="top", fontsize=9, color=B,
                    transform=ax.transAxes)
    ax.set_xlabel("difference between equal arms, % (dotted: ± 2 sd)")
    ax.set_ylabel("pairs")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
    ax.set_title(title)


def work_rows(record):
    """(tier, bytes, operations, seconds of A, of B) where the record has both."""
    times = {t["id"]: (t["a_s"], t["b_s"]) for t in record["analysis"]["tiers"]}
    for w in record["work"]:
        a, b = times.get(w["id"], (None, None))
        if a and b and w["moved_bytes"] > 0:
            yield w["id"], w["moved_bytes"], w["flops"], a, b


def bandwidths(records, card):
    """Read bandwidth of the card that records hold: the newest probe's, bytes a second, else nothing."""
    found = None
    for r in records:
        if r["schema"] == "assay-probe" and r["machine"]["card"] == card:
            if found is None or r["recorded_utc"] > found[0]:
                found = (r["recorded_utc"], r["experts_host"]["probe_bytes_per_s"][1], r["experts_host"]["threads"], r["record_sha256"][:16])
    return found


def plot_roofline(ax, comparisons, bandwidth):
    """Both arms of each tier: operations a byte against operations a second, the arrow from A to B."""
    ops = sorted({body(r)["op"] for r in comparisons})
    for r in comparisons:
        color = f"C{ops.index(body(r)['op']) % 10}"
        for _, moved, flops, a, b in work_rows(r):
            x = flops / moved
            ax.annotate("", (x, flops / b / 1e9), (x, flops / a / 1e9), arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.25})
            ax.plot([x], [flops / a / 1e9], "o", color=color, markersize=4.5, markerfacecolor="white", zorder=3)
            ax.plot([x], [flops / b / 1e9], "o", color=color, markersize=5, zorder=4)
    for i, op in enumerate(ops):
        ax.plot([], [], "o", color=f"C{i % 10}", label=op)
    ax.plot([], [], "o", color="black", markerfacecolor="white", label="open: A, filled: B")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(0.12)
    if bandwidth:
        x = np.array(ax.get_xlim())
        y = ax.get_ylim()
        ax.plot(x, x * bandwidth[1] / 1e9, color="black", linewidth=1.2,
                label=f"read at {bandwidth[1] / 1e9:.1f} GB/s\n({bandwidth[2]} threads, record {bandwidth[3]})")
        ax.set_xlim(*x)
        ax.set_ylim(*y)
    ax.set_xlabel("operations a byte (declared least work of a call)")
    ax.set_ylabel("billion operations a second")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))


def draw_comparison(record, path):
    rows, bar, floor = tier_rows(record)
    figure = plt.figure(figsize=(12.5, 11), layout="constrained")
    grid = figure.add_gridspec(4, 2, height_ratios=[max(1.6, 0.34 * len(rows) + 0.8), 2.6, 1.0, 2.6])
    top = figure.add_subplot(grid[0, :])
    forest(top, rows, bar, floor)
    top.set_xlabel(f"A's time over B's: above 1 B is faster (dashed: bar {bar:g}, dotted: floor of a tier {floor:g})")
    top.set_title("forest: interval by tier")
    slots = figure.add_subplot(grid[1, :])
    below = figure.add_subplot(grid[2, :], sharex=slots)
    plot_slots((slots, below), record)
    plot_pairs(figure.add_subplot(grid[3, 0]), record)
    pool = record["aa_pool"]["d"] + record["aa"]["d"]
    plot_null(figure.add_subplot(grid[3, 1]), pool, record["analysis"]["estimate"], f"A against A: {len(pool)} pairs")
    scratch = "SCRATCH, not citable. " if record["scratch"] else ""
    figure.suptitle(f"{scratch}{name_of(record)}: {record['verdict']['word']}   record {record['record_sha256'][:16]}", fontsize=13)
    plot_frame.save(figure, path)


def spread(pair, digits=4):
    return f"x{math.exp(pair[0]):.{digits}g} .. x{math.exp(pair[1]):.{digits}g}" if pair else "none"


def page_of(entry, bandwidth):
    record = entry["record"]
    plan, a = body(record), record["analysis"]
    ident = record["record_sha256"][:16]
    out = [f"# {name_of(record)}: {record['verdict']['word']}\n", entry["sentence"] + "\n",
           f"![forest, slots, pairs and A/A null]({ident}.png)\n",
           "| tier | A's time over B's, median | interval | lower bound | guard | A, us | B, us |", "|---|---|---|---|---|---|---|"]
    for t in a["tiers"]:
        interval = f"{t['interval'][0]:.4g} .. {t['interval'][1]:.4g}" if t["interval"] else "-"
        lower = f"{t['lower']:.4g}" if t["lower"] is not None else "-"
        cells = [f"`{t['id']}`", f"{t['median_ratio']:.4g}", interval, lower, t["guard"] or "not gated"]
        cells += [f"{1e6 * t[k]:.4g}" if t[k] else "-" for k in ("a_s", "b_s")]
        out.append("| " + " | ".join(cells) + " |")
    out.append("\n| check | value |\n|---|---|")
    level = f" ({100 * a['level']:.2f} % exact)" if a["level"] else ""
    out.append(f"| signed rank{level} | {spread(a['interval'])} |")
    out.append(f"| crossover, free of an order effect | {spread((a['crossover'] or {}).get('interval'))} |")
    out.append(f"| t, order removed | {spread(a['t_adj'])} |")
    if a["bootstrap_legacy"]:
        b = a["bootstrap_legacy"]
        out.append(f"| bootstrap percentile, covers {100 * b['coverage_percentile']:.1f} % and not 95 % | {spread(b['percentile'])} |")
        out.append(f"| bootstrap BCa, covers {100 * b['coverage_bca']:.1f} % | {spread(b['bca'])} |")
    if a["beta"] is not None:
        out.append(f"| order effect | {percent(a['beta'])}{', ALARM' if a['order_alarm'] else ''} |")
    for key, text in (("mde_planned", "least detectable effect, planned"), ("mde_achieved", "least detectable effect, achieved")):
        out.append(f"| {text} | {percent(a[key])[1:] if a[key] is not None else 'unknown'} |")
    found, experiments = record["aa"]["false_positives"]
    out.append(f"| A/A experiments of 8 pairs called different | {found} of {experiments} |")
    peer = record["peer"]
    out.append(f"| outside peer | {peer['name'] + ' ' + peer['version'] if peer['name'] else 'none: ' + peer['reason']} |")
    rows = list(work_rows(record))
    if rows:
        out.append("\nDeclared least bytes and operations of a call, and what they come to:\n")
        head = ["tier", "bytes", "operations", "A, GB/s", "B, GB/s", "A, Gop/s", "B, Gop/s"] + (["B of the read bandwidth"] if bandwidth else [])
        out.append("| " + " | ".join(head) + " |")
        out.append("|" + "---|" * len(head))
        for tier, moved, flops, ta, tb in rows:
            cells = [f"`{tier}`", f"{moved:.4g}", f"{flops:.4g}"] + [f"{v:.4g}" for v in
                     (moved / ta / 1e9, moved / tb / 1e9, flops / ta / 1e9, flops / tb / 1e9)]
            if bandwidth:
                cells.append(f"{100 * moved / tb / bandwidth[1]:.3g} %")
            out.append("| " + " | ".join(cells) + " |")
        if bandwidth:
            out.append(f"\nRead bandwidth {bandwidth[1] / 1e9:.1f} GB/s: median of record `{bandwidth[3]}`, {bandwidth[2]} threads, another sitting; "
                       "a call whose data stay in the caches can exceed it.")
    aside = [r for r in record["runs"] if r["status"] in ("discarded", "failed")]
    out.append("\nRuns set aside: " + (", ".join(f"run {r['run']} {r['status']} {r['code'] or ''}".strip() for r in aside) or "none") + ".")
    build, machine = record["build"], record["machine"]
    out.append(f"\nPlan `{record['plan']['sha256'][:16]}`, lane {plan['lane']}, regime {plan['regime']}, {plan['threads']} thread(s), {plan['blocks']} blocks a start, "
               f"stage {plan['stage']}; {machine['card']}, {build['compiler']}, commit {build['commit'][:12]}{', dirty' if build['dirty'] else ''}; "
               f"sources {entry['sources']}; recorded {record['recorded_utc']}; record `{ident}`.")
    return "\n".join(out) + "\n"


def stack_rows(record):
    """The stack against stock, its tiers, and what each member is worth: the stack's speed over that without it."""
    a = record["analysis"]
    rows = []
    if a["estimate"] is not None:
        low, high = a["interval"] or (None, None)
        rows.append(("all together against stock", a["speedup"], None if low is None else math.exp(low), None if high is None else math.exp(high), color_of(record)))
    rows += [(f"{t['id']} [{t['guard']}]", t["median_ratio"], None, None, B) for t in a["tiers"]]
    for m in sorted(a["members"], key=lambda m: -m["estimate"]):
        text = f"with {m['op']}={m['variant']} over without" + ("" if m["keep"] else " [dropped]")
        c = np.exp(m["c"])
        rows.append((text, math.exp(m["estimate"]), float(c.min()), float(c.max()), GAIN if m["keep"] else LOSS))
    return rows


def draw_stacks(entries, out):
    """Text and plots of whole-engine rounds; empty where there are none."""
    text = []
    for e in entries:
        r = e["record"]
        if r["schema"] != "assay-stack":
            continue
        plan, ident = r["plan"]["body"], r["record_sha256"][:16]
        rows = stack_rows(r)
        text.append(f"### {r['machine']['card']}, {plan['lane']} lane, {plan['numerics']}: {r['verdict']['word']}\n\n{e['sentence']}.\n")
        if not rows:
            continue
        figure, ax = plt.subplots(figsize=(12.5, 1.6 + 0.34 * len(rows)), layout="constrained")
        forest(ax, rows, plan["bars"]["effect"], plan["bars"]["tier_min"])
        ax.set_xlabel("speed ratio; whole: exact interval, members: least and most of the rounds")
        ax.set_title(f"{r['machine']['card']}: {len(plan['members'])} member(s) in the whole engine, {r['analysis']['rounds']} rounds, record {ident}")
        plot_frame.save(figure, out / f"stack_{ident}.png")
        text.append(f"![stack](stack_{ident}.png)\n")
    return ["## Whole engine\n"] + text if text else []


def draw(report, out):
    entries = load(report)
    everything = [e["record"] for e in entries]
    wanted = [e for e in entries if e["record"]["schema"] == "abg-result"
              and (report["screenings"] or body(e["record"])["stage"] != "screen")]
    wanted.sort(key=lambda e: (e["record"]["machine"]["card"], body(e["record"])["op"], name_of(e["record"]), e["record"]["recorded_utc"]))
    text = ["# Comparisons\n", "Written by `assay report` from records that it verified first. A ratio is A's time over B's: above 1, B is faster. "
            "Screenings make no claim and are listed only on request; losers have pages like winners.\n"]
    stacks = draw_stacks(entries, out)
    text += stacks
    if not wanted and not stacks:
        text.append("No comparison among the records given.")
    cards = sorted({e["record"]["machine"]["card"] for e in wanted})
    for card in cards:
        of_card = [e for e in wanted if e["record"]["machine"]["card"] == card]
        records = [e["record"] for e in of_card]
        bandwidth = bandwidths(everything, card)
        slug = "".join(c if c.isalnum() else "-" for c in card.lower()).strip("-")
        rows = []
        for r in records:
            a = r["analysis"]
            if a["estimate"] is None:
                continue
            low, high = a["interval"] or (None, None)
            commit = r["build"]["commit"][:7]
            rows.append((f"{name_of(r)}  {commit}  {r['verdict']['word']}", a["speedup"], None if low is None else math.exp(low),
                         None if high is None else math.exp(high), color_of(r)))
        text.append(f"## {card}\n")
        if rows:
            figure, ax = plt.subplots(figsize=(12.5, 1.4 + 0.26 * len(rows)), layout="constrained")
            forest(ax, rows)
            ax.set_xlabel("A's time over B's, exact interval (green: claimed, red: rejected or invalid, grey: open)")
            ax.set_title(f"{card}: every comparison")
            ax.tick_params(axis="y", labelsize=8)
            plot_frame.save(figure, out / f"forest_{slug}.png")
            text.append(f"![all comparisons](forest_{slug}.png)\n")
        text.append("| comparison | verdict | ratio | interval | pairs | sources | record |\n|---|---|---|---|---|---|---|")
        for e in of_card:
            r = e["record"]
            a, ident = r["analysis"], r["record_sha256"][:16]
            ratio = f"x{a['speedup']:.4g}" if a["speedup"] is not None else "-"
            text.append(f"| [{name_of(r)}]({ident}.md) | {r['verdict']['word']} | {ratio} | {spread(a['interval'])} | {len(a['d'])} | "
                        f"{e['sources'].split(':')[0]} | `{ident}` |")
            draw_comparison(r, out / f"{ident}.png")
            (out / f"{ident}.md").write_text(page_of(e, bandwidth))
        # Screenings count: an A/A pair claims nothing and chooses nothing.
        null = [d for r in everything if r["schema"] == "abg-result" and r["machine"]["card"] == card for d in r["aa"]["d"]]
        figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
        plot_null(ax, null, None, f"{card}: {len(null)} A/A pairs of all comparisons")
        plot_frame.save(figure, out / f"aa_null_{slug}.png")
        text.append(f"\n![A against A](aa_null_{slug}.png)\n")
        if any(True for r in records for _ in work_rows(r)):
            figure, ax = plt.subplots(figsize=(11, 6), layout="constrained")
            plot_roofline(ax, records, bandwidth)
            ax.set_title(f"{card}: work against time")
            plot_frame.save(figure, out / f"roofline_{slug}.png")
            text.append(f"![roofline](roofline_{slug}.png)\n")
        ledger = [r for r in everything if r["schema"] == "assay-ledger" and r.get("card", card) == card]
        if ledger:
            count = {e: sum(r["event"] == e for r in ledger) for e in ("started", "finished", "refused")}
            claimed = sum(r["event"] == "finished" and r["verdict"] in ("ADOPT", "STACK-MEMBER") for r in ledger)
            text.append(f"Ledger: {count['started']} comparisons started, {count['finished']} finished, {count['refused']} refused, {claimed} with a claim.\n")
    (out / "index.md").write_text("\n".join(text) + "\n")
    return out / "index.md"


if __name__ == "__main__":
    sys.exit(plot_frame.run(__doc__, "assay-report", draw))
