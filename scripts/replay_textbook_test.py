#!/usr/bin/env python3
"""Plain mode of `assay replay` against simulators written here from the policies' definitions, on the shipped capture.

    scripts/replay_textbook_test.py --assay build/host/bin/assay

LRU, LFU, FIFO, SIEVE, Belady and Belady with bypass must miss exactly as often, ARC and S3-FIFO within 2 %; for one cache of
all layers and for one cache a layer. docs/replay.md lists the differences of rules for the last two.
"""
import argparse
import heapq
import json
import pathlib
import struct
import subprocess
import sys
from collections import OrderedDict

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRACE = ROOT / "traces" / "tiny-capture.mrt"
STEPS = 1500
SLOTS = (96, 192, 384)
CLOSE = {"arc": 0.02, "s3fifo": 0.02}  # the others: no difference at all


def read_objects(path, steps):
    """Objects (layer * experts + expert) in the order of plain mode, and the geometry."""
    raw = path.read_bytes()
    record, layers, experts, top_k = struct.unpack_from("<IHHB", raw, 16)
    objects = []
    for s in range(steps):
        ids = raw[128 + s * record + 16:][:layers * top_k]
        objects += [i // top_k * experts + e for i, e in enumerate(ids) if e != 255]
    return objects, layers, experts


def lru(objects, size):
    cache, misses = OrderedDict(), 0
    for o in objects:
        if o in cache:
            cache.move_to_end(o)
            continue
        misses += 1
        if len(cache) == size:
            cache.popitem(last=False)
        cache[o] = True
    return misses


def fifo(objects, size):
    cache, misses = OrderedDict(), 0
    for o in objects:
        if o not in cache:
            misses += 1
            if len(cache) == size:
                cache.popitem(last=False)
            cache[o] = True
    return misses


def lfu(objects, size):
    """Counts end with residency; of the lowest count the object longest at that count goes."""
    count, at, misses = {}, {}, 0  # at: count -> objects by time of arrival there
    for o in objects:
        if o in count:
            del at[count[o]][o]
            if not at[count[o]]:
                del at[count[o]]
            count[o] += 1
        else:
            misses += 1
            if len(count) == size:
                low = min(at)
                victim, _ = at[low].popitem(last=False)
                if not at[low]:
                    del at[low]
                del count[victim]
            count[o] = 1
        at.setdefault(count[o], OrderedDict())[o] = True
    return misses


def sieve(objects, size):
    """Zhang et al., NSDI 2024: a queue, a bit, a hand that moves from old to new and rests where it evicted."""
    older, newer, bit = {}, {}, {}
    head = tail = hand = None  # newest, oldest
    misses = 0
    for o in objects:
        if o in bit:
            bit[o] = True
            continue
        misses += 1
        if len(bit) == size:
            v = hand if hand is not None else tail
            while bit[v]:
                bit[v] = False
                v = newer[v] if newer[v] is not None else tail
            hand = newer[v]
            if newer[v] is not None:
                older[newer[v]] = older[v]
            else:
                head = older[v]
            if older[v] is not None:
                newer[older[v]] = newer[v]
            else:
                tail = newer[v]
            del bit[v], older[v], newer[v]
        bit[o], older[o], newer[o] = False, head, None
        if head is not None:
            newer[head] = o
        head = o
        if tail is None:
            tail = o
    return misses


def next_uses(objects):
    again, seen = [0] * len(objects), {}
    for i in range(len(objects) - 1, -1, -1):
        again[i] = seen.get(objects[i], len(objects))
        seen[objects[i]] = i
    return again


def belady(objects, size, bypass=False):
    again, cache, farthest, misses = next_uses(objects), {}, [], 0
    for i, o in enumerate(objects):
        if o not in cache:
            misses += 1
            if len(cache) == size:
                while cache.get(farthest[0][1]) != -farthest[0][0]:
                    heapq.heappop(farthest)
                if bypass and again[i] >= -farthest[0][0]:
                    continue
                del cache[heapq.heappop(farthest)[1]]
        cache[o] = again[i]
        heapq.heappush(farthest, (-again[i], o))
    return misses


def arc(objects, c):
    """Megiddo and Modha, FAST 2003, figure 4."""
    t1, t2, b1, b2 = OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict()
    p, misses = 0.0, 0

    def replace(in_b2):
        if t1 and (len(t1) > p or (in_b2 and len(t1) == p)):
            b1[t1.popitem(last=False)[0]] = True
        else:
            b2[t2.popitem(last=False)[0]] = True

    for x in objects:
        if x in t1 or x in t2:
            t1.pop(x, None)
            t2.pop(x, None)
            t2[x] = True
            continue
        misses += 1
        if x in b1:
            p = min(c, p + max(1.0, len(b2) / len(b1)))
            replace(False)
            del b1[x]
            t2[x] = True
        elif x in b2:
            p = max(0.0, p - max(1.0, len(b1) / len(b2)))
            replace(True)
            del b2[x]
            t2[x] = True
        else:
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.popitem(last=False)
                    replace(False)
                else:
                    t1.popitem(last=False)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.popitem(last=False)
                replace(False)
            t1[x] = True
    return misses


def s3fifo(objects, size):
    """Yang et al., SOSP 2023, algorithm 1: small is a tenth, the ghost holds as many as main."""
    small, main, ghost, freq, misses = OrderedDict(), OrderedDict(), OrderedDict(), {}, 0
    tenth = max(1, size // 10)

    def evict_main():
        while True:
            o, _ = main.popitem(last=False)
            if freq[o] == 0:
                del freq[o]
                return
            freq[o] -= 1
            main[o] = True

    def evict_small():
        while small:
            o, _ = small.popitem(last=False)
            if freq[o] > 1:
                freq[o] = 0
                main[o] = True
                if len(main) > size - tenth:
                    evict_main()
                    return
            else:
                ghost[o] = True
                if len(ghost) > size - tenth:
                    ghost.popitem(last=False)
                del freq[o]
                return
        evict_main()

    for o in objects:
        if o in freq:
            freq[o] = min(3, freq[o] + 1)
            continue
        misses += 1
        remembered = ghost.pop(o, None)
        if len(freq) == size:
            if len(small) >= tenth:
                evict_small()
            else:
                evict_main()
        freq[o] = 0
        (main if remembered else small)[o] = True
    return misses


POLICIES = {"lru": lru, "lfu": lfu, "fifo": fifo, "sieve": sieve, "belady": belady,
            "belady-bypass": lambda o, c: belady(o, c, bypass=True), "arc": arc, "s3fifo": s3fifo}


def replayed(assay, partition):
    """{(policy, slots): misses} as the program counts them."""
    out = subprocess.run([assay, "replay", TRACE, "--mode", "plain", "--partition", partition, "--steps", str(STEPS),
                          "--slots", ",".join(map(str, SLOTS)), "--policies", ",".join(POLICIES), "--resamples", "1",
                          "--json", "-"], capture_output=True, text=True, check=True).stdout
    return {(r["policy"], r["slots"]): r["misses"] for r in json.loads(out)["results"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--assay", required=True)
    assay = parser.parse_args().assay
    objects, layers, experts = read_objects(TRACE, STEPS)
    by_layer = [[o for o in objects if o // experts == layer] for layer in range(layers)]
    wrong = compared = 0
    for partition in ("global", "layer"):
        got = replayed(assay, partition)
        for slots in SLOTS:
            for name, simulate in POLICIES.items():
                if partition == "global":
                    want = simulate(objects, slots)
                else:
                    want = sum(simulate(part, slots // layers) for part in by_layer)
                misses = got[name, slots]
                off = abs(misses - want) / want
                bad = not off <= CLOSE.get(name, 0.0)
                wrong += bad
                compared += 1
                print(f"{partition:6} {slots:4} {name:13} {misses:7} textbook {want:7} {100 * off:6.2f} %"
                      f"{'  WRONG' if bad else ''}")
    print(f"replay_textbook: {compared} compared, {wrong} wrong")
    return 1 if wrong or compared != 2 * len(SLOTS) * len(POLICIES) else 0


if __name__ == "__main__":
    sys.exit(main())
