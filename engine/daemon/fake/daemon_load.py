#!/usr/bin/env python3
"""Load on the daemon with the scripted backend, measured; one JSON document on stdout, exit 1 when a goal is missed.

  daemon_load.py --program build/host/bin/fake_assayd clients --clients 256 --seconds 10    # readers of one 40 event/s stream
  daemon_load.py --program ... halfopen --clients 500 --seconds 60     # half-sent requests; health stays quick
  daemon_load.py --program ... firstframe                              # what the daemon adds to the engine's first token
  daemon_load.py --program ... soak --requests 100000                  # mixed requests; memory, descriptors, threads
"""
import argparse
import json
import os
import random
import select
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon_client import Daemon, Stream, frames, read_response, request_bytes, script

EVENT_S = 0.025


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("inf")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


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
    used = (cpu_seconds(pid) - cpu) / (time.monotonic() - started)
    memory = d.metrics()["assay_process_resident_bytes"] / 2**20
    rates = [r[3] / o.seconds for r in readers.values()]
    limit = 0.050 if o.clients <= 256 else 0.250
    result = {"clients": o.clients, "seconds": o.seconds, "gap_p50_ms": 1e3 * quantile(gaps, 0.5), "gap_p99_ms": 1e3 * quantile(gaps, 0.99),
              "gap_max_ms": 1e3 * max(gaps, default=float("inf")), "events_per_s_min": min(rates), "lost_clients": lost,
              "core_share": used, "resident_mib": memory}
    good = lost == 0 and quantile(gaps, 0.99) <= limit
    if o.clients <= 256:
        good = good and used <= 0.25 and memory <= 64
    return result, good


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
        started = time.monotonic()
        d.health()
        times.append(time.monotonic() - started)
        time.sleep(0.02)
    thread.join()
    result = {"attackers": o.clients, "seconds": o.seconds, "opened": opened[0], "health_p50_ms": 1e3 * quantile(times, 0.5),
              "health_p99_ms": 1e3 * quantile(times, 0.99), "health_max_ms": 1e3 * max(times)}
    return result, quantile(times, 0.99) <= 0.100


def firstframe(d, o):
    """From the request to the first delta, with an engine that needs no time."""
    times = []
    for _ in range(o.requests or 300):
        s = d.connect()
        data = request_bytes("POST", "/v1/chat", script(tokens=["x"]))
        started = time.monotonic()
        s.sendall(data)
        got = b""
        while b"event: delta" not in got:
            got += s.recv(65536)
        times.append(time.monotonic() - started)
        s.close()
    result = {"requests": len(times), "first_delta_p50_ms": 1e3 * quantile(times, 0.5), "first_delta_p99_ms": 1e3 * quantile(times, 0.99)}
    return result, quantile(times, 0.5) <= 0.002


def soak(d, o):
    """10 % aborted, 5 % malformed, 5 % leave, the rest whole; what the process holds must not grow."""
    total = o.requests or 100_000
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
                samples.append((i, m["assay_process_resident_bytes"], m["assay_process_open_files"], m["assay_process_threads"]))

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
    started = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    d.wait_idle()
    late = [s for s in samples if s[0] >= total // 5]  # after the warm-up
    n = len(late)
    mean_x, mean_y = sum(s[0] for s in late) / n, sum(s[1] for s in late) / n
    slope = sum((s[0] - mean_x) * (s[1] - mean_y) for s in late) / max(1.0, sum((s[0] - mean_x) ** 2 for s in late))
    end = d.metrics()
    result = {"requests": total, "seconds": time.monotonic() - started, "wrong": len(wrong), "first_wrong": wrong[:3],
              "mib_per_10000": slope * 10_000 / 2**20, "resident_mib": end["assay_process_resident_bytes"] / 2**20,
              "threads": end["assay_process_threads"], "open_files_end": end["assay_process_open_files"], "in_flight": end["assay_in_flight"]}
    good = not wrong and result["mib_per_10000"] < 1.0 and end["assay_in_flight"] == 0 and len({s[3] for s in samples}) == 1
    return result, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("mode", choices=["clients", "halfopen", "firstframe", "soak"])
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--requests", type=int)
    o = parser.parse_args()
    d = Daemon(o.program, "--queue", "64")
    # Its log must not fill the pipe.
    threading.Thread(target=d.process.stderr.read, daemon=True).start()
    try:
        result, good = {"clients": clients, "halfopen": halfopen, "firstframe": firstframe, "soak": soak}[o.mode](d, o)
    finally:
        d.process.terminate()
        d.process.wait(20)
    print(json.dumps({"schema": "assay-daemon-load", "schema_version": 1, "mode": o.mode, "good": good, **result}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
