#!/usr/bin/env python3
"""Writes results/README.md: every stored record in words, winners and losers alike.

    scripts/results_index.py [--root DIR] [--check]

--check writes nothing and fails when the page and the records differ. The page does not say whether a proof is current:
that depends on the sources at hand, and `assay catalog` tells.
"""
import argparse
import json
import math
import pathlib
import sys

HEAD = """# Results

Written by `scripts/results_index.py`; a test fails when this page and the records differ. Every line is a stored record, whatever it found:
a loss stays. `assay verify results` recomputes them all; how to read a verdict: [howto-measure.md](../docs/howto-measure.md).
"""


def records_of(card):
    for path in sorted(card.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def ratio(log_ratio):
    return f"x{math.exp(log_ratio):.4g}"


def ab_row(record, winners):
    plan, analysis = record["plan"]["body"], record["analysis"]
    interval = analysis["interval"]
    # A screening makes no claim, so its numbers are not given a page to be quoted from.
    claims = plan["stage"] == "confirm" and interval is not None
    peer = record["peer"]["name"] or "none"
    cells = [
        f"`{plan['op']}`", f"`{plan['b']}`" + ("" if plan["a"] == "stock" else f" against `{plan['a']}`"), plan["stage"], ", ".join(t["id"] for t in plan["tiers"]), str(plan["threads"]),
        record["verdict"]["word"], f"{ratio(interval[0])} .. {ratio(interval[1])}" if claims else "-",
        str(len(analysis["d"])), peer, "yes" if record["record_sha256"] in winners else "",
        record["build"]["commit"][:12], f"`{record['record_sha256'][:16]}`"]
    return "| " + " | ".join(cells) + " |"


def parity_row(record):
    totals, worst = record["totals"], record["worst"]
    cells = [f"`{record['op']}`", f"`{record['variant']}`", record["class"], record["outcome"],
             f"{totals['compared']} of {totals['cases']}", str(worst["mismatched_bytes"]), record["build"]["commit"][:12],
             f"`{record['record_sha256'][:16]}`"]
    return "| " + " | ".join(cells) + " |"


def other_row(record):
    """A record of a measurement that is no comparison of variants, in one line; None for those listed elsewhere."""
    schema = record["schema"]
    if schema == "assay-search":
        what = "policy search"
        found = "; ".join(f"{100 * a['residency']:.0f} % resident: {100 * a['difference']:+.1f} points of the gap beyond decay32 "
                          f"({100 * a['interval'][0]:+.1f} .. {100 * a['interval'][1]:+.1f})" for a in record["against"])
    elif schema == "assay-replay-speed":
        what, met = "replay speed", [a for a in record["arms"] if a["goal_per_s"] is not None]
        found = f"{sum(a['best_per_s'] >= a['goal_per_s'] for a in met)} of {len(met)} goals met"
    elif schema == "assay-probe":
        p = record["experts_host"]
        what = f"experts drawn from memory, {p['type']}, {p['threads']} threads"
        found = "; ".join(f"`{a['variant']}` {100 * a['of_probe'][1]:.1f} % of a read-only probe" for a in p["arms"])
    elif schema == "assay-bench-model":
        what = f"model speed, {record['numerics']} lane, {record['threads']} threads"
        found = "; ".join(
            f"{r['test']} {r['tokens']} at {r['depth_tokens']}: "
            + (f"x{r['peer']['ratio']:.2f} {r['peer']['name']}" if r["peer"]["name"] else f"{r['median_tokens_per_s']:.4g} tokens/s, no peer")
            for r in record["rows"])
    elif schema == "assay-nightly":
        what = f"nightly, {record['sanitizers']} sanitizers"
        bad = [s["name"] for s in record["steps"] if s["exit"] != 0]
        found = "; ".join(s["said"] for s in record["steps"]) if not bad else "found something: " + ", ".join(bad)
    elif schema == "assay-daemon-load":
        what = f"daemon, {record['mode']}: " + ", ".join(f"{n} {name}" for name, n in sorted(record["settings"].items()))
        found = "; ".join(f"{g['of']} {g['take']} {g['value']}" + ("" if g["met"] else " MISSED") for g in record["goals"])
    elif schema == "assay-gpu-check":
        bad = [s["name"] for s in record["steps"] if s["exit"] != 0]
        what = "`scripts/gpu_check`"
        found = f"{len(record['steps'])} steps" + (f", not good: {', '.join(bad)}" if bad else ", all good")
    elif schema == "assay-stack":
        plan, a = record["plan"]["body"], record["analysis"]
        what = f"{plan['lane']} lane, {plan['numerics']}: " + ", ".join(f"`{o}={v}`" for o, v in plan["members"].items())
        found = f"{record['verdict']['word']}" + (f", together {ratio(a['interval'][0])} .. {ratio(a['interval'][1])} stock's speed" if a["interval"] else "")
        if record["verdict"]["dropped"]:
            found += ", dropped: " + ", ".join(record["verdict"]["dropped"])
    elif schema == "assay-calibration":
        what = "the harness on a device of known effects"
        rates = [100 * c["covered"] / c["repetitions"] for c in record["coverage"]]
        called = [c["different"] for c in record["aa"]]
        four = [100 * c["covered"] / c["repetitions"] for c in record["abg4"]]
        power = [100 * c["wins"] / c["repetitions"] for c in record["power"]]
        null = record["null_campaigns"]
        found = (f"coverage {min(rates):.1f} .. {max(rates):.1f} %; equal arms called different {min(called)} .. {max(called)} of 1,000; "
                 f"1.5 % found with {min(power):.0f} .. {max(power):.0f} % power; {null['with_claim']} of {null['campaigns']} campaigns of no-ops "
                 f"with a claim; abg4 covers {min(four):.1f} .. {max(four):.1f} %")
    else:
        return None
    return f"| {what} | {found} | {record['build']['commit'][:12] if isinstance(record['build'], dict) else record['build'].split(' commit ')[1][:12]} | `{record['record_sha256'][:16]}` |"


def section(card):
    records = list(records_of(card))
    sets = [json.loads(p.read_text()) for p in sorted(card.rglob("proven_*.json"))]
    winners = {e["ab_record"] for s in sets for lanes in s["ops"].values() for e in lanes.values()}
    name = next((r["machine"]["card"] for r in records if "card" in r.get("machine", {})), card.name)
    out = [f"\n## {name}\n"]
    ab = [r for r in records if r["schema"] == "abg-result"]
    if ab:
        out.append("Micro lane, stock's (or the named arm's) time over the variant's; the interval is the exact one of the pairs' geometric mean over the tiers.\n")
        out.append("| op | variant | stage | tiers | threads | verdict | interval | pairs | peer | in a proven set | commit | record |")
        out.append("|---|---|---|---|---|---|---|---|---|---|---|---|")
        out += [ab_row(r, winners) for r in sorted(
            ab, key=lambda r: (r["plan"]["body"]["op"], r["plan"]["body"]["b"], r["recorded_utc"], r["record_sha256"]))]
    parity = [r for r in records if r["schema"] == "assay-parity"]
    if parity:
        out.append("\n| op | variant | class | parity | cases compared | mismatched bytes | commit | record |")
        out.append("|---|---|---|---|---|---|---|---|")
        out += [parity_row(r) for r in sorted(
            parity, key=lambda r: (r["op"], r["variant"], r["recorded_utc"], r["record_sha256"]))]
    others = [row for r in sorted(records, key=lambda r: (r["schema"], r.get("recorded_utc", ""))) if (row := other_row(r))]
    if others:
        out.append("\n| measurement | found | commit | record |")
        out.append("|---|---|---|---|")
        out += others
    ledger = [r for r in records if r["schema"] == "assay-ledger"]
    if ledger:
        events = {e: sum(r["event"] == e for r in ledger) for e in ("started", "finished", "refused")}
        out.append(f"\nLedger: {events['started']} comparisons started, {events['finished']} finished, "
                   f"{events['refused']} refused.")
    return "\n".join(out)


def page(results):
    cards = [c for c in sorted(results.iterdir()) if c.is_dir() and c.name not in ("schema", "scratch")]
    sections = [section(c) for c in cards]
    return HEAD + ("\n".join(sections) if sections else "\nNo record is stored yet, so no speed is claimed.") + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    args = parser.parse_args()
    target = args.root / "results" / "README.md"
    text = page(args.root / "results")
    if not args.check:
        target.write_text(text)
        return 0
    if target.exists() and target.read_text() == text:
        return 0
    print(f"{target}: differs from the records; write it with scripts/results_index.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
