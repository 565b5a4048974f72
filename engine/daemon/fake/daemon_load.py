#!/usr/bin/env python3
"""Load on the daemon with the scripted backend, measured. One sealed record on stdout, or at the end of --record FILE
(results/schema/daemon_load.schema.json: raw values, goals, verdict; `assay verify` recomputes the verdict); exit 1 when a goal is missed.

  daemon_load.py --program build/host/bin/fake_assayd clients --clients 256 --seconds 30    # readers of one 40 event/s stream
  daemon_load.py --program ... halfopen --clients 500 --seconds 60     # half-sent requests; health stays quick
  daemon_load.py --program ... slow --clients 500 --seconds 60         # slowhttptest: heads, bodies, reads, each so long
  daemon_load.py --program ... prefill --seconds 60                    # health and metrics while the engine prefills
  daemon_load.py --program ... firstframe --requests 300               # what the daemon adds to the engine's first token
  daemon_load.py --program ... soak --requests 100000                  # mixed requests; memory, descriptors, threads
  daemon_load.py --program ... storm --requests 10000                  # connections that come and go
  daemon_load.py --program ... isolation --requests 1000               # cancelled turns beside one that is not
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import math
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon_client import Daemon, Stream, frames, request_bytes, script

EVENT_S = 0.025


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("inf")


# Raw values, whole numbers only: what is counted once, how often each value was seen, or how a value went.
def count(n):
    return {"count": int(n)}


def bins(values):
    return {"bins": [[value, times] for value, times in sorted(collections.Counter(map(int, values)).items())]}


def micros(seconds):
    """To the next tenth of a millisecond upwards: tens of thousands of gaps in a record of some kilobytes."""
    return bins(100 * math.ceil(1e4 * s) for s in seconds)


def series(points):
    return {"series": [[int(x), int(y)] for x, y in points]}


def taken(raw, take):
    """A goal's value; bench/load_record.cpp computes the same."""
    if take == "count":
        return raw["count"]
    if take == "growth":
        return raw["series"][-1][1] - raw["series"][0][1]
    if take == "spread":
        return max(y for _, y in raw["series"]) - min(y for _, y in raw["series"])
    if take == "slope_per_10000":  # least squares, rounded down
        n = len(raw["series"])
        sx, sy = (sum(p[i] for p in raw["series"]) for i in (0, 1))
        sxx, sxy = sum(x * x for x, _ in raw["series"]), sum(x * y for x, y in raw["series"])
        return 10_000 * (n * sxy - sx * sy) // (n * sxx - sx * sx)
    if take == "min":
        return raw["bins"][0][0]
    total = sum(times for _, times in raw["bins"])
    rank, seen = total * {"p50": 50, "p99": 99}[take] // 100, 0
    for value, times in raw["bins"]:
        seen += times
        if seen > rank:
            return value
    raise ValueError(f"no {take} of nothing")


def most(of, take, limit):
    return {"of": of, "take": take, "at_most": int(limit)}


def least(of, take, limit):
    return {"of": of, "take": take, "at_least": int(limit)}


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def timed(f):
    started = time.monotonic()
    f()
    return time.monotonic() - started


def clients(d, o):
    """Readers of /v1/events while one turn makes 40 events a second; gaps between the arrivals at each reader."""
    poll = select.epoll()
    readers = {}
    for _ in range(o.clients):
        s = d.connect()
        s.sendall(request_bytes("GET", "/v1/events"))
        readers[s.fileno()] = [s, b"", None, 0]  # socket, unfinished frame, last arrival, events
        poll.register(s.fileno(), select.EPOLLIN)
    while d.metrics()["assay_event_subscribers"] < o.clients:
        time.sleep(0.01)
    turn = Stream(d, "/v1/chat", script(tokens=["x"], repeat=int((o.seconds + 1) / EVENT_S), delay_ms=EVENT_S * 1000))
    threading.Thread(target=turn.rest, daemon=True).start()
    gaps, lost = [], 0
    pid = d.process.pid
    cpu, started = cpu_seconds(pid), time.monotonic()
    while (now := time.monotonic()) < started + o.seconds:
        for fd, _ in poll.poll(0.1):
            reader = readers[fd]
            data = reader[0].recv(65536)
            now = time.monotonic()
            if not data:
                lost += 1
                poll.unregister(fd)
                continue
            parts = (reader[1] + data).split(b"\n\n")
            reader[1] = parts.pop()
            for part in parts:
                if part.startswith(b"event: phase"):
                    if reader[2] is not None and reader[3] > 4:  # not the start's
                        gaps.append(now - reader[2])
                    reader[2] = now
                    reader[3] += 1
    used = (cpu_seconds(pid) - cpu) / (time.monotonic() - started) * o.seconds
    raw = {"gaps_us": micros(gaps), "events_of_a_reader": bins(r[3] for r in readers.values()), "lost_readers": count(lost),
           "cpu_ms": count(1e3 * used), "resident_kib": count(d.metrics()["assay_process_resident_bytes"] / 1024)}
    goals = [most("gaps_us", "p99", 50_000 if o.clients <= 256 else 250_000), most("lost_readers", "count", 0),
             least("events_of_a_reader", "min", 0.9 * o.seconds / EVENT_S)]
    if o.clients <= 256:
        goals += [most("cpu_ms", "count", 250 * o.seconds), most("resident_kib", "count", 64 * 1024)]
    return raw, goals


def halfopen(d, o):
    """Requests that never end, made again when the daemon drops them."""
    stop = time.monotonic() + o.seconds
    opened = [0]

    def attack():
        sockets = []
        rng = random.Random(3)
        while time.monotonic() < stop:
            while len(sockets) < o.clients:
                s = d.connect()
                s.sendall(rng.choice([b"", b"GET / HT", b"POST /v1/chat HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{",
                                      b"GET / HTTP/1.1\r\nHost: h\r\nX: "]))
                s.setblocking(False)
                sockets.append(s)
                opened[0] += 1
            alive = []
            for s in sockets:
                try:
                    if s.recv(4096) == b"":
                        s.close()
                        continue
                except BlockingIOError:
                    pass
                except OSError:
                    s.close()
                    continue
                alive.append(s)
            sockets = alive
            time.sleep(0.05)
        for s in sockets:
            s.close()

    thread = threading.Thread(target=attack)
    thread.start()
    time.sleep(0.5)
    times = []
    while time.monotonic() < stop:
        times.append(timed(d.health))
        time.sleep(0.02)
    thread.join()
    return ({"health_us": micros(times), "opened": count(opened[0])},
            [most("health_us", "p99", 100_000), least("opened", "count", o.clients)])


def slow_attack(d, mode, connections, seconds):
    """slowhttptest on a daemon: ([seconds of each health answer meanwhile], most connections seen open)"""
    flags = {"head": ["-H", "-u", f"http://127.0.0.1:{d.port}/v1/health"],
             "body": ["-B", "-u", f"http://127.0.0.1:{d.port}/v1/chat", "-f", "application/json", "-s", "8192"],
             "read": ["-X", "-w", "1", "-y", "2", "-n", "1", "-z", "4", "-k", "3", "-u", f"http://127.0.0.1:{d.port}/"]}[mode]
    tool = subprocess.Popen(["slowhttptest", *flags, "-c", str(connections), "-r", str(connections), "-i", "1", "-x", "8",
                             "-l", str(int(seconds)), "-v", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    times, opened = [], 0
    try:
        stop = time.monotonic() + seconds
        while time.monotonic() < stop and tool.poll() is None:
            times.append(timed(d.health))
            opened = max(opened, int(d.metrics()["assay_connections"]) - 1)
            time.sleep(0.02)
    finally:
        tool.terminate()
        tool.wait(20)
    return times, opened


def slow(d, o):
    raw, goals = {}, []
    for mode in ("head", "body", "read"):
        times, opened = slow_attack(d, mode, o.clients, o.seconds)
        raw |= {f"health_us_{mode}": micros(times), f"opened_{mode}": count(opened)}
        goals += [most(f"health_us_{mode}", "p99", 100_000), least(f"opened_{mode}", "count", 0.9 * o.clients)]
    return raw, goals


def prefill(d, o):
    s = Stream(d, "/v1/chat", script(tokens=["x"], prefill_ms=1000 * o.seconds + 60_000, chunks=int(10 * o.seconds)))
    health, metrics = [], []
    stop = time.monotonic() + o.seconds
    while time.monotonic() < stop:
        health.append(timed(d.health))
        metrics.append(timed(lambda: d.get("/v1/metrics")))
        time.sleep(0.02)
    running = d.health()["in_flight"]
    s.close()
    return ({"health_us": micros(health), "metrics_us": micros(metrics), "turns_in_prefill": count(running)},
            [most("health_us", "p99", 50_000), most("metrics_us", "p99", 50_000), least("turns_in_prefill", "count", 1)])


def firstframe(d, o):
    """From the request to the first delta, with an engine that needs no time."""
    times = []
    for _ in range(o.requests):
        s = d.connect()
        data = request_bytes("POST", "/v1/chat", script(tokens=["x"]))
        started = time.monotonic()
        s.sendall(data)
        got = b""
        while b"event: delta" not in got:
            got += s.recv(65536)
        times.append(time.monotonic() - started)
        s.close()
    return {"first_delta_us": micros(times)}, [most("first_delta_us", "p50", 2_000)]


def settled(d, before):
    """Open descriptors once what was closed is gone; at most five seconds."""
    deadline = time.monotonic() + 5
    while (now := d.metrics()["assay_process_open_files"]) > before and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def next_is_wrong(d):
    d.wait_idle()
    return d.post("/v1/chat", script(stream=False, tokens=["all ", "well"])).json()["text"] != "all well"


def soak(d, o):
    """10 % aborted, 5 % malformed, 5 % leave, the rest whole; what the process holds must not grow."""
    total = o.requests
    lock = threading.Lock()
    done = [0]
    wrong = []
    samples = []

    def worker(seed):
        rng = random.Random(seed)
        while True:
            with lock:
                if done[0] >= total:
                    return
                done[0] += 1
                i = done[0]
            kind = rng.random()
            try:
                if kind < 0.10:
                    s = Stream(d, "/v1/chat", script(tokens=["x"], repeat=100, delay_ms=5))
                    d.post("/v1/abort", {"id": s.id})
                    if s.rest()[-1][0] not in ("aborted", "done"):
                        wrong.append("abort")
                    s.close()
                elif kind < 0.15:
                    if d.post("/v1/chat", b'{"messages":' + bytes([rng.randrange(256)])).status != 400:
                        wrong.append("malformed")
                elif kind < 0.20:
                    s = Stream(d, "/v1/chat", script(tokens=["x"], repeat=100, delay_ms=5))
                    s.close()
                elif kind < 0.5:
                    d.health()
                else:
                    want = f"reply {i} é"
                    found = frames(d.post("/v1/chat", {"messages": [{"role": "user", "content": want}]}).body)
                    if "".join(f["text"] for e, f in found if e == "delta") != want:
                        wrong.append("text")
            except (OSError, AssertionError, KeyError, IndexError, TypeError) as error:
                wrong.append(repr(error))
            if i % max(1, total // 50) == 0:
                m = d.metrics()
                samples.append((i, m["assay_process_resident_bytes"] / 1024, m["assay_process_threads"]))

    files = d.metrics()["assay_process_open_files"]
    threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d.wait_idle()
    if wrong:
        print(f"soak: {len(wrong)} wrong: {wrong[:3]}", file=sys.stderr)
    samples.sort()
    late = [s for s in samples if s[0] >= total // 5]  # after the warm-up
    raw = {"resident_kib": series((i, kib) for i, kib, _ in late), "threads": series((i, n) for i, _, n in samples),
           "open_files": series(((0, files), (total, settled(d, files)))), "wrong": count(len(wrong) + next_is_wrong(d)),
           "in_flight": count(d.metrics()["assay_in_flight"])}
    goals = [most("resident_kib", "slope_per_10000", 1023), most("threads", "spread", 0), most("open_files", "growth", 0),
             most("wrong", "count", 0), most("in_flight", "count", 0)]
    return raw, goals


def storm_of(d, times):
    """Connections that close or reset in the middle of something."""
    def one(i):
        s = d.connect()
        kind = i % 5
        if kind == 1:
            s.sendall(b"GET / HT")
        elif kind == 2:
            s.sendall(request_bytes("POST", "/v1/chat", script(tokens=["x"], delay_ms=1)))
        elif kind == 3:
            s.sendall(request_bytes("GET", "/v1/events"))
        elif kind == 4:
            s.sendall(b"\0" * 100)
        if i % 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        s.close()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(times)))


def storm(d, o):
    total = o.requests
    files = d.metrics()["assay_process_open_files"]
    storm_of(d, total)
    wrong = next_is_wrong(d)
    raw = {"connections": count(d.metrics()["assay_connections_total"]), "in_flight": count(d.metrics()["assay_in_flight"]),
           "open_files": series(((0, files), (total, settled(d, files)))), "next_request_wrong": count(wrong)}
    return raw, [least("connections", "count", total), most("in_flight", "count", 0), most("open_files", "growth", 0),
                 most("next_request_wrong", "count", 0)]


def interleavings(d, times):
    """How often a turn's text was changed by two others that were cancelled, closed or reset around it."""
    def text_of(found):
        return "".join(data["text"] for event, data in found if event == "delta")
    survivor = script(tokens=[f"b{i} " for i in range(20)])
    want = text_of(frames(d.post("/v1/chat", survivor).body))
    rng = random.Random(7)
    changed = 0
    for _ in range(times):
        doomed = [Stream(d, "/v1/chat", script(tokens=["a"], repeat=50, delay_ms=1)) for _ in range(2)]
        kept = Stream(d, "/v1/chat", survivor)
        for s in doomed:
            time.sleep(rng.uniform(0, 0.004))
            how = rng.randrange(3)
            if how == 0:
                d.post("/v1/abort", {"id": s.id})
                s.rest()
            elif how == 1:
                s.close()
            else:
                s.reset()
        changed += text_of(kept.rest()) != want
    d.wait_idle()
    return changed


def isolation(d, o):
    total = o.requests
    changed = interleavings(d, total)
    raw = {"interleavings": count(total), "changed": count(changed),
           "turns_cancelled": count(d.metrics()['assay_turns_total{outcome="aborted"}'])}
    return raw, [most("changed", "count", 0), least("turns_cancelled", "count", total)]


MODES = {"clients": clients, "halfopen": halfopen, "slow": slow, "prefill": prefill, "firstframe": firstframe, "soak": soak,
         "storm": storm, "isolation": isolation}
# Which settings a mode reads.
SETTINGS = {"clients": {"clients": 256, "seconds": 10}, "halfopen": {"clients": 500, "seconds": 60}, "slow": {"clients": 500, "seconds": 60},
            "prefill": {"seconds": 60}, "firstframe": {"requests": 300}, "soak": {"requests": 100_000}, "storm": {"requests": 10_000},
            "isolation": {"requests": 1000}}


def record_of(mode, settings, raw, goals, build, load):
    """Sealed as kernels/base/record.cpp seals; no number is a fraction, so both write the same text."""
    for goal in goals:
        value = taken(raw[goal["of"]], goal["take"])
        goal |= {"value": value, "met": value <= goal["at_most"] if "at_most" in goal else value >= goal["at_least"]}
    record = {"schema": "assay-daemon-load", "schema_version": "1.0.0",
              "recorded_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "build": build,
              "scratch": re.search(r" clean ", build) is None, "mode": mode, "settings": settings,
              "machine": {"cores": os.cpu_count(), "load_percent": load}, "raw": raw, "goals": goals,
              "good": all(goal["met"] for goal in goals)}
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return record | {"record_sha256": hashlib.sha256(text.encode()).hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("mode", choices=MODES)
    for name in ("clients", "seconds", "requests"):
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--record", help="append the record to this file instead of stdout")
    o = parser.parse_args()
    settings = {name: value if (value := getattr(o, name)) is not None else usual for name, usual in SETTINGS[o.mode].items()}
    vars(o).update(settings)
    build = subprocess.run([o.program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    load = int(100 * os.getloadavg()[0])
    d = Daemon(o.program, "--queue", "64")
    # Its log must not fill the pipe.
    threading.Thread(target=d.process.stderr.read, daemon=True).start()
    try:
        raw, goals = MODES[o.mode](d, o)
    finally:
        d.process.terminate()
        code = d.process.wait(20)
    raw["exit_code"] = count(abs(code))
    goals.append(most("exit_code", "count", 0))
    record = record_of(o.mode, settings, raw, goals, build, load)
    line = json.dumps(record, sort_keys=True, separators=(",", ":"))
    if o.record:
        with open(o.record, "a", encoding="ascii") as out:
            out.write(line + "\n")
    else:
        print(line, flush=True)
    for goal in record["goals"]:
        bound = f"at most {goal['at_most']}" if "at_most" in goal else f"at least {goal['at_least']}"
        print(f"{o.mode}: {goal['of']} {goal['take']} {goal['value']}, {bound}: {'met' if goal['met'] else 'MISSED'}", file=sys.stderr)
    # The last line of a nightly step's log is its word.
    print(f"{o.mode}: {sum(g['met'] for g in goals)} of {len(goals)} goals met, record {record['record_sha256'][:16]}", file=sys.stderr)
    return 0 if record["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
