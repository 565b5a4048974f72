"""The daemon over raw sockets, with the scripted backend: promises P1 to P7, P12, P14 of docs/daemon.md.

  daemon_test.py --program build/host/bin/fake_assayd [Streams Bytes Requests Http Keys Stop Clock ..] [Slow SlowHttp]
"""
import argparse
import glob
import json
import math
import os
import random
import re
import signal
import shutil
import socket
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon_client import (Daemon, Stream, frames, read_head, read_response, request_bytes, readable, script)
from daemon_load import interleavings, quantile, slow_attack, storm_of

PROGRAM = None
SLACK = 1  # of deadlines: more under a sanitizer


def step_s():
    """A cancel is seen within one scripted step; the rest is two processes on a busy machine."""
    return 0.25 * SLACK


class WithDaemon(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.d = Daemon(PROGRAM, *(str(f * SLACK) if isinstance(f, int) else f for f in cls.FLAGS))

    @classmethod
    def tearDownClass(cls):
        code, log = cls.d.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {log[-2000:]}")

    def assert_serves(self):
        """The next request is right and nothing is left behind."""
        self.d.wait_idle()
        out = self.d.post("/v1/chat", script(stream=False, tokens=["all ", "well"])).json()
        self.assertEqual(out["text"], "all well")

    def turn(self, path="/v1/chat", **fields):
        response = self.d.post(path, script(**fields))
        self.assertEqual(response.status, 200, response)
        return frames(response.body)


def text_of(found):
    return "".join(d["text"] for e, d in found if e == "delta")


def order_of(found):
    return [e for e, _ in found]


class Streams(WithDaemon):
    """Group A: streams and cancelling."""

    def test_frames_in_order_one_terminal(self):
        found = self.turn(tokens=["a", "b"], calls=[{"name": "f", "arguments": {"x": 1}}], margin=-28.43)
        self.assertEqual(order_of(found), ["meta", "delta", "delta", "tool_call", "kairos", "done"])
        meta, kairos, done = found[0][1], found[-2][1], found[-1][1]
        self.assertEqual(set(meta) & {"id", "prompt_tokens", "reused_tokens", "armed"}, {"id", "prompt_tokens", "reused_tokens", "armed"})
        self.assertEqual(kairos, {"eot_margin": -28.43, "verdict": "severed", "stop": "tool_calls"})
        self.assertEqual(set(done["phases_ms"]), {"prefill", "recall", "decode", "post"})
        self.assertEqual(done["usage"]["completion_tokens"], 2)
        self.assertGreater(done["tokens_per_s"], 0)
        self.assertEqual(self.turn(tokens=["a"], margin=None)[-2][1]["verdict"], "unknown")

    def test_client_gone_frees_the_slot(self):
        for at in (0, 1, 17, 39):
            for leave in ("close", "reset"):
                s = Stream(self.d, "/v1/chat", script(tokens=["x"], repeat=40, delay_ms=10))
                for _ in range(at):
                    s.next()
                s.close() if leave == "close" else s.reset()
                self.assertLess(self.d.wait_idle(), step_s(), f"{leave} after {at} frames")
        self.assert_serves()

    def test_client_gone_in_prefill(self):
        for chunk in (0, 2):
            s = Stream(self.d, "/v1/chat", script(tokens=["x"], prefill_ms=4000, chunks=100))
            time.sleep(0.04 * chunk + 0.02)
            s.close()
            self.assertLess(self.d.wait_idle(), step_s())
        self.assert_serves()

    def test_client_of_a_document_gone(self):
        s = self.d.connect()
        s.sendall(request_bytes("POST", "/v1/chat", script(stream=False, tokens=["x"], delay_ms=3000)))
        time.sleep(0.05)
        self.assertEqual(self.d.health()["in_flight"], 1)
        s.close()
        self.assertLess(self.d.wait_idle(), step_s())

    def test_half_closed_client_is_served(self):
        for stream in (True, False):
            with self.d.connect() as s:
                s.sendall(request_bytes("POST", "/v1/chat", script(stream=stream, tokens=["a", "b"], delay_ms=60)))
                s.shutdown(socket.SHUT_WR)
                response = read_response(s)
                got = text_of(frames(response.body)) if stream else response.json()["text"]
                self.assertEqual(got, "ab")

    def test_abort_at_every_stage(self):
        slow = script(tokens=["x"], repeat=200, delay_ms=20, prefill_ms=300, chunks=30)
        running, waiting = Stream(self.d, "/v1/chat", slow), Stream(self.d, "/v1/chat", slow)
        state = lambda id_: self.d.post("/v1/abort", {"id": id_}).json()["state"]
        self.assertEqual(state(waiting.id), "aborted")  # in the queue
        found = waiting.rest()
        self.assertEqual(order_of(found), ["meta", "kairos", "aborted"])
        self.assertEqual(found[1][1], {"eot_margin": None, "verdict": "unknown", "stop": "aborted"})
        self.assertEqual(state(running.id), "aborted")  # in prefill
        self.assertEqual(order_of(running.rest())[-2:], ["kairos", "aborted"])
        decoding = Stream(self.d, "/v1/chat", slow)
        decoding.until("delta")
        started = time.monotonic()
        self.assertEqual(state(decoding.id), "aborted")
        self.assertEqual(order_of(decoding.rest())[-1], "aborted")
        self.assertLess(time.monotonic() - started, step_s())
        self.d.wait_idle()
        self.assertEqual([state(decoding.id), state(decoding.id), state("turn-999999")], ["finished", "finished", "unknown"])
        self.assert_serves()

    def test_abort_of_an_ended_turn_leaves_the_next_alone(self):
        ended = Stream(self.d, "/v1/chat", script(tokens=["x"]))
        ended.rest()
        running = Stream(self.d, "/v1/chat", script(tokens=["y"], repeat=20, delay_ms=5))
        running.until("delta")
        for _ in range(10):
            self.assertEqual(self.d.post("/v1/abort", {"id": ended.id}).json()["state"], "finished")
        self.assertEqual(order_of(running.rest())[-1], "done")

    def test_abort_races_the_natural_end(self):
        self.race(60)

    def race(self, times):
        seen = set()
        for i in range(times):
            s = Stream(self.d, "/v1/chat", script(tokens=["x"], repeat=3, delay_ms=1))
            time.sleep(random.Random(i).uniform(0, 0.006))
            self.assertEqual(self.d.post("/v1/abort", {"id": s.id}).status, 200)
            found = order_of(s.rest())
            self.assertEqual(sum(e in ("done", "error", "aborted") for e in found), 1, found)
            self.assertEqual(found.count("kairos"), 1)
            seen.add(found[-1])
        self.assertEqual(seen, {"done", "aborted"})  # the race was met from both sides

    def test_queue_keeps_order_and_its_bound(self):
        held = Stream(self.d, "/v1/chat", script(tokens=["x"], prefill_ms=10_000))
        held.next()
        streams = [Stream(self.d, "/v1/chat", script(tokens=[str(i)])) for i in range(64)]
        full = self.d.post("/v1/chat", script(tokens=["x"]))
        self.assertEqual((full.status, full.code(), full.headers["retry-after"]), (429, "queue_full", "1"))
        events = Stream(self.d, "/v1/events")
        self.assertEqual(events.next()[0], "hello")
        self.d.post("/v1/abort", {"id": held.id})
        self.assertEqual([text_of(s.rest()) for s in streams], [str(i) for i in range(64)])
        ends = [events.until("end")["id"] for _ in range(65)]
        self.assertEqual(ends, [held.id] + [s.id for s in streams])
        events.close()

    def test_events_in_order_with_sequence(self):
        events = Stream(self.d, "/v1/events")
        events.next()
        self.turn(tokens=["a", "b"], prefill_ms=30)
        self.turn(tokens=["a"], fail="numeric_error")
        found = [events.next()]
        while [e for e, _ in found].count("end") < 2:
            found.append(events.next())
        sequence = [d["seq"] for _, d in found]
        self.assertEqual(sequence, list(range(sequence[0], sequence[0] + len(found))))
        names = [e for e, _ in found]
        self.assertEqual(names[0], "start")
        self.assertIn("phase", names)
        self.assertEqual(names[-2:], ["fault", "end"])
        events.close()

    def test_slow_reader_holds_nobody_up(self):
        resident = lambda: self.d.metrics()["assay_process_resident_bytes"]
        before = resident()
        s = self.d.connect()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.sendall(request_bytes("POST", "/v1/chat", script(tokens=["y" * 4000], repeat=4000)))  # 16 MB, never read
        time.sleep(0.2)
        started = time.monotonic()
        self.assert_serves()
        self.assertLess(time.monotonic() - started, 3.0 * SLACK)  # one second of patience, once
        if SLACK == 1:  # a sanitizer keeps freed memory
            self.assertLess(resident() - before, 8 << 20)
        s.settimeout(20)
        text = b""
        while more := s.recv(1 << 16):
            text += more
        kinds = re.findall(rb"event: (\w+)", text)
        self.assertEqual(kinds[-2:], [b"kairos", b"aborted"])
        self.assertEqual((kinds.count(b"kairos"), kinds.count(b"aborted")), (1, 1))
        self.assertIn(b'"reason":"the reader is too slow"', text)
        s.close()

    def test_cancel_never_changes_another_turn(self):
        self.interleave(40)

    def interleave(self, times):
        self.assertEqual(interleavings(self.d, times), 0)

    def test_health_answers_during_a_long_prefill(self):
        s = Stream(self.d, "/v1/chat", script(tokens=["x"], prefill_ms=20_000, chunks=400))
        times = []
        for ask in (self.d.health, self.d.metrics) * 20:
            started = time.monotonic()
            ask()
            times.append(time.monotonic() - started)
        self.assertEqual(self.d.health()["in_flight"], 1)
        s.close()
        self.assertLess(quantile(times, 0.9), 0.05 * SLACK)  # of all for a minute: daemon_load.py prefill
        self.assertLess(max(times), 0.25 * SLACK)
        self.d.wait_idle()


class Bytes(WithDaemon):
    """Group B."""

    def whole(self, pieces, **fields):
        found = self.turn(tokens=[{"hex": p.hex()} for p in pieces], **fields)
        return text_of(found), found

    def test_characters_split_at_every_point(self):
        for char in ("é", "€", "🚀"):
            data = char.encode()
            for cut in range(1, len(data)):
                self.assertEqual(self.whole([b"a" + data[:cut], data[cut:] + b"b"])[0], f"a{char}b")
            self.assertEqual(self.whole([bytes([b]) for b in data])[0], char)
        family = "👩‍👩‍👧🏽"
        self.assertEqual(self.whole([bytes([b]) for b in family.encode()])[0], family)

    def test_bytes_that_are_no_character_do_not_stall(self):
        for data in (b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xff", b"\xf5\x80"):
            text, _ = self.whole([data, b"ok"])
            self.assertTrue(text.endswith("ok") and "\ufffd" in text, text)
        self.assertEqual(self.whole([b"a\xe2\x82"])[0], "a\ufffd")

    def test_text_that_looks_like_frames(self):
        for text in ("a\n\nb", "data: x\n\n", "event: done\ndata: {}\n\n", "a\r\n\r\nb", "nul\0nul", "\u2028\u0085"):
            self.assertEqual(self.whole([text.encode()])[0], text)

    def test_stop_string_across_tokens_and_characters(self):
        text, found = self.whole([b"one \xc3", b"\xa9n", b"d", b"! two"], stop=["énd!"])
        self.assertEqual(text, "one ")
        self.assertEqual(found[-2][1]["stop"], "stop_string")

    def test_byte_exact_is_the_tokens_bytes(self):
        import base64
        pieces = [b"\xff\x00", b"\xe2", b"\x82\xac"]
        _, found = self.whole(pieces, byte_exact=True)
        self.assertEqual(b"".join(base64.b64decode(d["bytes"]) for e, d in found if e == "delta" and d["bytes"]), b"".join(pieces))

    def test_request_cut_at_every_byte(self):
        body = {"messages": [{"role": "user", "content": "hé 🚀"}], "stream": False}
        data = request_bytes("POST", "/v1/chat", json.dumps(body, ensure_ascii=False).encode())
        for cut in range(1, len(data), 7):
            with self.d.connect() as s:
                s.sendall(data[:cut])
                time.sleep(0.002)
                s.sendall(data[cut:])
                self.assertEqual(read_response(s).json()["text"], "hé 🚀")
        with self.d.connect() as s:
            for b in data:
                s.sendall(bytes([b]))
            self.assertEqual(read_response(s).json()["text"], "hé 🚀")


class Requests(WithDaemon):
    """Group C through the wire, the OpenAI shape, failures of a turn."""

    def test_prompt_against_the_context(self):
        too_long = self.d.post("/v1/chat", script(tokens=["x"], prompt_tokens=4097))
        self.assertEqual((too_long.status, too_long.code()), (400, "context_exceeded"))
        self.assertIn("4097", too_long.json()["error"]["message"])
        self.assertIn("4096", too_long.json()["error"]["message"])
        found = self.turn(tokens=["x"], repeat=5, prompt_tokens=4096)
        self.assertEqual((text_of(found), found[-2][1]["stop"]), ("x", "context"))
        self.assertEqual(self.turn(tokens=["x"], repeat=5, max_tokens=2)[-2][1]["stop"], "length")

    def test_raw_logits_and_logprobs(self):
        for k in (0, 1, 300):
            delta = self.turn(tokens=["x"], raw_logits=k)[1][1]
            self.assertEqual(len(delta.get("raw_logits", [[]])[0]), k)
        self.assertEqual(self.d.post("/v1/chat", script(tokens=["x"], raw_logits=301)).status, 400)
        self.assertEqual(len(self.turn(tokens=["x"], logprobs=2)[1][1]["logprobs"][0]["top_logprobs"]), 2)

    def test_every_field_refuses_other_types(self):
        kinds = {"text": "x", "number": 1, "flag": True, "list": [], "object": {}, "null": None}
        takes = {"messages": (), "ids": (), "stop": ("text", "list"), "byte_exact": ("flag",), "stream": ("flag",), "thinking": ("flag",),
                 "tools": ("list",), "tool_choice": (), "grammar": ("text",), "session": ("text",), "prefix": ("text",),
                 "frames": ("list",), "max_tokens": ("number",), "temperature": ("number",), "top_k": ("number",),
                 "top_p": ("number",), "seed": ("number",), "eot_bias": ("number",), "raw_logits": ("number",), "logprobs": ("number",)}
        for field, good in takes.items():
            for kind, value in kinds.items():
                if kind in good:
                    continue
                response = self.d.post("/v1/chat", {**script(tokens=["x"]), field: value})
                self.assertEqual(response.status, 400, (field, kind, response))
                self.assertTrue(response.json()["error"]["param"].startswith(field), (field, kind, response))

    def test_failures_have_their_code(self):
        for code in ("numeric_error", "out_of_memory", "grammar_dead_end", "tool_parse_error", "engine_error"):
            found = self.turn(tokens=["a", "b"], fail=code, fail_at=1)
            self.assertEqual(order_of(found), ["meta", "delta", "kairos", "error"])
            self.assertEqual(found[-1][1]["error"]["code"], code)
            document = self.d.post("/v1/chat", script(stream=False, tokens=["a"], fail=code))
            self.assertEqual((document.status, document.code()), (500, code))
        self.assertEqual(self.turn(tokens=["a"], fail="tool_parse_error")[-1][1]["error"]["raw"], "call:f{")

    def test_refusals_state_the_loss(self):
        capture = self.d.request("POST", "/v1/capture", b"\xff not json")
        self.assertEqual((capture.status, capture.code()), (501, "unsupported_on_moe"))
        self.assertIn("ADR-013", capture.body.decode())
        grammar = self.d.post("/v1/chat", script(tokens=["x"], grammar="root ::= \"a\""))
        self.assertEqual(grammar.status, 501)
        self.assertEqual(grammar.json()["error"]["lost"][0]["name"], "grammar")

    def test_embeddings_never_compare_across_spaces(self):
        a = self.d.post("/v1/embed", {"input": ["abc", "abd"]}).json()
        v = a["vectors"]
        same = self.d.post("/v1/embed/similarity", {"a": {"space": a["space"], "vector": v[0]}, "b": {"space": a["space"], "vector": v[0]}})
        self.assertAlmostEqual(same.json()["similarity"], 1.0)
        other = self.d.post("/v1/embed/similarity", {"a": {"space": a["space"], "vector": v[0]}, "b": {"space": "else", "vector": v[1]}})
        self.assertEqual((other.status, other.code()), (409, "conflict"))
        self.assertEqual(self.d.post("/v1/embed", {"input": ""}).status, 400)
        self.assertEqual(self.d.post("/v1/embed", {"ids": [[1, 2], [3]]}).status, 200)

    def test_openai_shape(self):
        body = {**script(tokens=["Hel", "lo"], calls=[{"name": "f", "arguments": {"x": 1}}]), "model": "any", "user": "u",
                "logprobs": True, "top_logprobs": 1, "stream_options": {"include_usage": True}}
        lines = self.d.post("/v1/chat/completions", body).body.decode().split("\n\n")
        self.assertEqual(lines[-2:], ["data: [DONE]", ""])
        chunks = [json.loads(l.removeprefix("data: ")) for l in lines[:-2]]
        self.assertTrue(all(c["object"] == "chat.completion.chunk" and c["model"] == "any" for c in chunks))
        self.assertEqual(chunks[0]["ignored"], ["user"])
        choices = [c["choices"][0] for c in chunks if c["choices"]]
        self.assertEqual("".join(c["delta"].get("content") or "" for c in choices), "Hello")
        self.assertEqual(choices[1]["logprobs"]["content"][0]["top_logprobs"][0]["bytes"], [97])
        call = next(c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"])
        self.assertEqual((call["index"], call["function"]["name"], json.loads(call["function"]["arguments"])), (0, "f", {"x": 1}))
        self.assertEqual(choices[-1]["finish_reason"], "tool_calls")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 2)
        document = self.d.post("/v1/chat/completions", {**body, "stream": False, "stream_options": None}).json()
        self.assertEqual(document["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f")
        self.assertEqual(document["ignored"], ["user"])
        failed = self.d.post("/v1/chat/completions", script(tokens=["x"], fail="numeric_error")).body.decode()
        self.assertIn('"code":"numeric_error"', failed)
        self.assertTrue(failed.endswith("data: [DONE]\n\n"))
        listed = self.d.get("/v1/models").json()["data"]
        self.assertEqual([m["id"] for m in listed], ["fake"])
        for path in ("/v1/models/fake", "/v1/models/f%61ke"):
            self.assertEqual(self.d.get(path).json(), listed[0])
        for path in ("/v1/models/", "/v1/models/gpt-4o", "/v1/models/fake/x", "/v1/models/fake%", "/v1/models/%0"):
            response = self.d.get(path)
            self.assertEqual((response.status, response.code(), response.json()["error"]["param"]), (404, "not_found", "model"), path)
        response = self.d.post("/v1/embeddings", {"input": "x", "model": "any"})
        self.assertEqual((response.status, response.code()), (404, "not_found"))
        self.assertIn("/v1/embed ", response.json()["error"]["message"])
        self.assertEqual(self.d.post("/tokenize", {"content": "ab", "special": True}).json(), {"tokens": [256, 97, 98]})
        self.assertEqual(self.d.post("/detokenize", {"tokens": [97, 98]}).json(), {"content": "ab"})
        self.assertEqual(self.d.post("/detokenize", {"tokens": [300]}).code(), "token_out_of_range")

    def test_metrics_are_finite_from_the_first_scrape(self):
        fresh = Daemon(PROGRAM)
        for _ in range(2):
            values = fresh.metrics()
            self.assertGreater(len(values), 20)
            self.assertTrue(all(math.isfinite(v) for v in values.values()))
            s = Stream(fresh, "/v1/chat", script(tokens=["x"], prefill_ms=500))
            fresh.post("/v1/abort", {"id": s.id})
            s.rest()
        self.assertEqual(fresh.metrics()['assay_turns_total{outcome="aborted"}'], 2)
        self.assertEqual(fresh.stop()[0], 0)

    def test_metrics_page_is_well_formed(self):
        lines = self.d.get("/v1/metrics").body.decode().splitlines()
        types = [l.split()[2] for l in lines if l.startswith("# TYPE")]
        self.assertEqual(len(types), len(set(types)))
        samples = [l.rsplit(" ", 1)[0] for l in lines if not l.startswith("#")]
        self.assertEqual(len(samples), len(set(samples)))
        family = None
        for line in lines:
            if line.startswith("# TYPE"):
                family = line.split()[2]
            elif not line.startswith("#"):
                self.assertEqual(line.split("{")[0].split(" ")[0], family)
        self.assertGreaterEqual(self.d.metrics()["assay_prefix_hits_total"], 0)
        self.assertEqual(self.d.metrics()['assay_fake_turns_total{kind="more"}'], 0)

    def test_sessions_say_what_was_reused(self):
        first, second = (self.turn(tokens=["x"], session="s1", prompt_tokens=9) for _ in range(2))
        self.assertEqual((first[0][1]["reused_tokens"], first[-1][1]["prefix"]), (0, "cold:new_session"))
        self.assertEqual((second[0][1]["reused_tokens"], second[-1][1]["prefix"]), (9, "hit"))


class Http(WithDaemon):
    """Group D: one socket, hostile bytes."""

    FLAGS = ("--head-deadline-ms", 600, "--body-deadline-ms", 800)

    def raw(self, data, d=None):
        """Every byte that came back until the server closed."""
        with (d or self.d).connect() as s:
            out = b""
            try:
                s.sendall(data)
                while more := s.recv(65536):
                    out += more
            except ConnectionError:
                pass
            return out

    def statuses(self, data, d=None):
        return [int(m) for m in re.findall(rb"HTTP/1\.1 (\d{3})", self.raw(data, d))]

    def test_hostile_heads_and_bodies_get_one_400(self):
        post = b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\n"
        smuggled = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
        for bad in (post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                    post + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
                    post + b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
                    post + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
                    post + b"X: a\r\n b\r\n\r\n", post + b"X : a\r\n\r\n", post + b"X: a\n\r\n", post + b"X: \0\r\n\r\n",
                    post + b"Host: g\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
                    chunked + b"-2\r\n{}\r\n0\r\n\r\n", chunked + b"+5\r\n{}\r\n", chunked + b"0x5\r\n{}\r\n",
                    chunked + b"11111111111111111\r\n{}\r\n", chunked + b"2;" + b"a" * (1 << 20) + b"\r\n{}\r\n0\r\n\r\n",
                    b"GET /\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
            self.assertEqual(self.statuses(bad + smuggled), [400], bad[:80])

    def test_limits_of_the_head(self):
        for bad in (b"GET /" + b"a" * (1 << 20), b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 8192,
                    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 10_000 + b"\r\n"):
            self.assertEqual(self.statuses(bad), [431])
        self.assertEqual(self.statuses(b"GET /%0d%0aX:y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), [404])

    def test_limits_of_the_body(self):
        post = b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\n"
        self.assertEqual(self.statuses(post + b"Content-Length: 8388609\r\n\r\n"), [413])
        endless = post + b"Transfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b" " * 0x100000 + b"\r\n") * 9
        d = Daemon(PROGRAM)  # with time enough for nine megabytes on a busy machine
        self.assertEqual(self.statuses(endless, d), [413])
        self.assertLess(d.metrics()["assay_process_resident_bytes"], SLACK * 64 << 20)
        self.assertEqual(d.stop()[0], 0)

    def test_deadlines(self):
        for data, status in ((b"GET / HTTP/1.1\r\nHo", b" 408 "), (b"", b""),
                             (b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b" 408 "),
                             (b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b" 408 ")):
            started = time.monotonic()
            self.assertIn(status, self.raw(data), data)
            self.assertLess(time.monotonic() - started, 2.5 * SLACK)

    def test_smuggling_and_pipelining_count(self):
        get = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.assertEqual(self.statuses(get * 100 + b"BAD\r\n\r\n"), [200] * 100 + [400])
        inner = b"POST /v1/abort HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(get) + get
        self.assertEqual(self.statuses(inner + get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")), [400, 200])
        with self.d.connect() as s:  # FIN after the requests: all are answered
            s.sendall(get * 100)
            s.shutdown(socket.SHUT_WR)
            data = b""
            while more := s.recv(65536):
                data += more
            self.assertEqual(data.count(b"HTTP/1.1 200"), 100)

    def test_pipelined_requests_sent_apart_are_each_answered_once(self):
        with self.d.connect() as s:  # a read is under way while the second of a pair is taken out, and ends in the next pair
            at = 33
            for _ in range(20):
                pair = [at, at + 1]
                s.sendall(b"".join(request_bytes("POST", "/tokenize", {"content": chr(c)}, close=False) for c in pair))
                rest = b""
                for c in pair:
                    response = read_response(s, rest)
                    self.assertEqual(response.json()["tokens"], [c])
                    rest = response.rest
                at += 2

    def test_methods_and_routes(self):
        for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/chat", 405), ("BREW", "/v1/health", 405),
                                     ("POST", "/v1/health", 405), ("GET", "/v1/health?x=1", 200), ("DELETE", "/v1/models/fake", 405)):
            self.assertEqual(self.d.request(method, path).status, status, path)
        self.assertEqual(self.statuses(b"OPTIONS /v1/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"), [204])
        head = self.raw(b"HEAD /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertIn(b"Content-Length: ", head)
        self.assertTrue(head.endswith(b"\r\n\r\n"))
        self.assertEqual(self.d.request("GET", "/v1/health", headers=("Origin: http://evil.example",)).status, 403)
        self.assertEqual(self.d.request("GET", "/v1/health", headers=("Origin: http://localhost",)).status, 200)
        for host, status in ((b"evil.example:3000", 403), (b"127.0.0.1:3000", 200), (b"[::1]:3000", 200)):
            self.assertEqual(self.statuses(b"GET /v1/health HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nConnection: close\r\n\r\n" % (host, host)),
                             [status])
        for path, status in ((b"/v1/metrics", 403), (b"/v1/health", 200)):  # a name made to point here, without Origin
            self.assertEqual(self.statuses(b"GET %s HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n" % path), [status])
        with self.d.connect() as s:
            s.sendall(request_bytes("POST", "/v1/abort", headers=("Expect: 100-continue", "Content-Length: 10")))
            self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 100"))
            s.sendall(b'{"id":"x"}')
            self.assertEqual(read_response(s).status, 200)

    def test_storm_leaves_nothing(self):
        self.storm(150)

    def storm(self, times):
        before = self.d.metrics()["assay_process_open_files"]
        storm_of(self.d, times)
        self.assert_serves()
        deadline = time.monotonic() + 5
        while self.d.metrics()["assay_process_open_files"] > before + 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertLessEqual(self.d.metrics()["assay_process_open_files"], before + 1)


class Keys(WithDaemon):
    """D7, P14."""

    FLAGS = ("--api-key", "secret-key")

    def test_key(self):
        self.assertEqual(self.d.get("/v1/health").status, 200)
        self.assertEqual(self.d.get("/").status, 200)
        for header in ((), ("Authorization: Bearer secret-kez",), ("Authorization: secret-key",), ("Authorization: Bearer ",),
                       ("Authorization: Bearer " + "k" * 7000,), ("Authorization: Bearer secret-key2",),
                       ("Authorization: Bearer secret-ke",), ("Authorization: Basic secret-key",),
                       *((f"Authorization: Bearer {'secret-key'[:i]}\x7e{'secret-key'[i + 1:]}",) for i in range(10))):
            for path in ("/v1/models", "/v1/metrics", "/v1/events"):
                response = self.d.request("GET", path, headers=header)
                self.assertEqual((response.status, response.code()), (401, "unauthorized"))
        for scheme in ("Bearer", "bearer", "BEARER"):
            self.assertEqual(self.d.request("GET", "/v1/models", headers=(f"Authorization: {scheme} secret-key",)).status, 200)
        with self.d.connect() as s:  # refused before the body is there
            s.sendall(b"POST /v1/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
            self.assertEqual(read_head(s)[0], 401)


class Stop(unittest.TestCase):
    """How it ends, and what it does at its limits. Each test has its own daemon."""

    def test_sigterm_in_mid_stream(self):
        for grace, last in (("5000", "done"), ("50", "aborted")):
            d = Daemon(PROGRAM, "--grace-ms", grace)
            events = Stream(d, "/v1/events")
            running = Stream(d, "/v1/chat", script(tokens=["x"], repeat=30, delay_ms=20))
            waiting = Stream(d, "/v1/chat", script(tokens=["x"]))
            running.until("delta")
            code, log = d.stop()
            self.assertEqual(code, 0, log)
            self.assertEqual(running.rest()[-1][0], last)
            self.assertEqual(waiting.rest()[-1][1]["error"]["code"], "not_ready")
            self.assertIn("end", order_of(events.rest()))
            self.assertIn("TURN-PHASE id=turn-", log)

    def test_restarts_on_the_same_port(self):
        d = Daemon(PROGRAM)
        s = Stream(d, "/v1/chat", script(tokens=["x"], repeat=3, delay_ms=20))
        port = d.port
        self.assertEqual(d.stop()[0], 0)
        s.close()
        again = Daemon(PROGRAM, "--port", str(port))
        self.assertEqual(again.health()["state"], "ready")
        self.assertEqual(again.stop()[0], 0)

    def test_engine_failure_tells_all_and_exits(self):
        d = Daemon(PROGRAM)
        failing = Stream(d, "/v1/chat", script(tokens=["x"], repeat=20, delay_ms=20, throw_at=10))
        waiting = Stream(d, "/v1/chat", script(tokens=["x"]))
        started = time.monotonic()
        last = failing.rest()[-1]
        self.assertEqual((last[0], last[1]["error"]["code"]), ("error", "engine_error"))
        self.assertNotIn("secret", json.dumps(last))
        self.assertEqual(waiting.rest()[-1][0], "error")
        self.assertEqual(d.process.wait(timeout=10), 1)
        self.assertLess(time.monotonic() - started, 5.0 * SLACK)
        self.assertIn("secret detail", d.process.communicate()[1])  # in the log, for the owner

    def test_waiting_too_long_is_an_answer(self):
        d = Daemon(PROGRAM, "--queue-timeout-ms", "200")
        held = Stream(d, "/v1/chat", script(tokens=["x"], prefill_ms=30_000))
        stream = Stream(d, "/v1/chat", script(tokens=["x"]))
        document = d.post("/v1/chat", script(stream=False, tokens=["x"]))
        self.assertEqual((document.status, document.code(), document.headers["retry-after"]), (503, "not_ready", "1"))
        self.assertEqual(stream.rest()[-1][1]["error"]["code"], "not_ready")
        held.close()
        self.assertEqual(d.stop()[0], 0)

    def test_stalled_engine_turns_health_red(self):
        d = Daemon(PROGRAM, "--stall-ms", "200")
        s = Stream(d, "/v1/chat", script(tokens=["x"], prefill_ms=1500))
        time.sleep(0.5)
        health = d.get("/v1/health")
        self.assertEqual((health.status, health.json()["state"]), (503, "stalled"))
        s.rest()
        self.assertEqual(d.get("/v1/health").status, 200)
        self.assertEqual(d.stop()[0], 0)

    def test_reader_that_stalls_is_dropped(self):
        d = Daemon(PROGRAM, "--write-stall-ms", "300")
        for byte_at_a_time in (False, True):
            s = d.connect()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(request_bytes("POST", "/v1/chat", script(tokens=["y" * 4000], repeat=4000)))
            deadline = time.monotonic() + 5 * SLACK
            while d.metrics()["assay_connections"] > 1 and time.monotonic() < deadline:
                if byte_at_a_time:
                    s.recv(1)
                time.sleep(0.05)
            self.assertEqual(d.metrics()["assay_connections"], 1)  # the scrape's own
            s.close()
        self.assertEqual(d.stop()[0], 0)

    def test_reader_behind_a_small_window_is_served_while_bytes_move(self):
        """For longer than the limit no write ends: the kernel has room for the next one only when much of it has left."""
        d = Daemon(PROGRAM, "--write-stall-ms", "600")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before the window is told
            s.connect(("127.0.0.1", d.port))
            s.sendall(request_bytes("POST", "/v1/chat", script(tokens=["y" * 8000], repeat=1000, stream=False)))
            s.settimeout(10)
            read_head(s)
            until = time.monotonic() + 2.4
            while time.monotonic() < until:
                s.recv(1024)
                time.sleep(0.05)
            self.assertEqual(d.metrics()["assay_connections"], 2)  # the scrape's own
        self.assertEqual(d.stop()[0], 0)

    def test_out_of_descriptors_pauses_and_recovers(self):
        d = Daemon("/bin/sh", "-c", f"ulimit -n 64; exec {PROGRAM}")
        try:
            sockets = [d.connect() for _ in range(100)]
            time.sleep(0.3)
            ticks = os.sysconf("SC_CLK_TCK")

            def used():
                with open(f"/proc/{d.process.pid}/stat", encoding="ascii") as stat:
                    return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / ticks

            before = used()
            time.sleep(0.5)
            self.assertLess(used() - before, 0.25)  # waits, does not spin
            for s in sockets:
                s.close()
            deadline = time.monotonic() + 5
            while True:
                try:
                    self.assertEqual(d.health()["state"], "ready")
                    break
                except (OSError, ConnectionError):
                    self.assertLess(time.monotonic(), deadline)
            self.assertGreater(d.metrics()["assay_accept_pauses_total"], 0)
        finally:
            self.assertEqual(d.stop()[0], 0)

    def test_a_log_that_nobody_reads_stops_nothing(self):
        d = Daemon(PROGRAM)
        for _ in range(700):  # a pipe holds 64 KiB, a turn's line has over 100 bytes
            self.assertEqual(d.post("/v1/chat", script(stream=False, tokens=["x"])).status, 200)
        code, log = d.stop()
        self.assertEqual(code, 0)
        self.assertGreater(len(log), 50_000)

    def test_connection_limit_waits(self):
        d = Daemon(PROGRAM, "--max-connections", "4")
        held = [d.connect() for _ in range(4)]
        time.sleep(0.1)
        extra = d.connect()
        extra.sendall(request_bytes("GET", "/v1/health"))
        self.assertFalse(readable(extra, 0.2))
        held.pop().close()
        self.assertEqual(read_response(extra).status, 200)
        for s in held:
            s.close()
        self.assertEqual(d.stop()[0], 0)

    def test_others_reach_it_only_with_a_key(self):
        import subprocess
        out = subprocess.run([PROGRAM, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=10)
        self.assertEqual(out.returncode, 2)
        self.assertIn("--api-key-file", out.stderr)


FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")


@unittest.skipIf(not FAKETIME, "libfaketime is not installed")
class Clock(unittest.TestCase):
    """E4: the wall clock jumps by a day; deadlines, timeouts and streams follow the steady clock."""

    def test_jumps_of_the_wall_clock_change_no_deadline(self):
        if SLACK > 1:
            self.skipTest("a sanitizer must be loaded first")
        with tempfile.NamedTemporaryFile("w") as clock:
            def jump(offset):
                clock.seek(0)
                clock.truncate()
                clock.write(offset)
                clock.flush()
            jump("+0")
            d = Daemon(PROGRAM, "--head-deadline-ms", "400", "--queue-timeout-ms", "400", "--stall-ms", "5000",
                       prefix=("env", f"LD_PRELOAD={FAKETIME[0]}", f"FAKETIME_TIMESTAMP_FILE={clock.name}",
                               "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"))
            for offset, seconds in (("+1d", 86_400), ("-1d", -86_400)):
                jump("+0")
                half_open = d.connect()
                half_open.sendall(b"GET / HT")
                started = time.monotonic()
                stream = Stream(d, "/v1/chat", script(tokens=["x"], repeat=40, delay_ms=20))
                stream.until("delta")
                waiting = Stream(d, "/v1/chat", script(tokens=["x"]))
                jump(offset)
                document = d.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}],"max_tokens":0}')
                self.assertEqual(document.status, 400)
                self.assertEqual(d.health()["state"], "ready")
                self.assertFalse(readable(half_open, 0.05))  # no deadline came early
                self.assertEqual(read_head(half_open)[0], 408)  # and none stays away
                self.assertTrue(0.35 < time.monotonic() - started < 1.5, offset)
                self.assertEqual(waiting.rest()[-1][1]["error"]["code"], "not_ready")
                self.assertTrue(0.35 < time.monotonic() - started < 1.5, offset)
                self.assertEqual(order_of(stream.rest())[-1], "done")
                self.assertTrue(0.8 < time.monotonic() - started < 3.0, offset)
                body = {"messages": [{"role": "user", "content": "x"}], "stream": False}
                created = d.post("/v1/chat/completions", body).json()["created"]
                self.assertLess(abs(created - time.time() - seconds), 60)  # the jump was real
                half_open.close()
            self.assertEqual(d.stop()[0], 0)


class Slow(Streams):
    """The long forms: 1,000 races, 1,000 interleavings."""

    def test_abort_races_the_natural_end(self):
        self.race(1000)

    def test_cancel_never_changes_another_turn(self):
        self.interleave(1000)


class SlowHttp(Http):
    def test_storm_leaves_nothing(self):
        self.storm(10_000)

    @unittest.skipIf(not shutil.which("slowhttptest"), "slowhttptest is not installed")
    def test_slow_heads_bodies_and_reads_of_500_connections(self):
        d = Daemon(PROGRAM)  # its deadlines are longer than the attack
        for mode in ("head", "body", "read"):
            times, opened = slow_attack(d, mode, 500, 5)
            self.assertGreaterEqual(opened, 400, mode)
            self.assertLess(quantile(times, 0.9), 0.1 * SLACK, mode)
            self.assertEqual(d.post("/v1/chat", script(stream=False, tokens=["all ", "well"])).json()["text"], "all well")
        self.assertEqual(d.stop()[0], 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--slack", type=int, default=1)
    options, rest = parser.parse_known_args()
    PROGRAM, SLACK = options.program, options.slack
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)
