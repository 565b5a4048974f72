"""assayd on the shipped model when memory or the disk fails, is killed, or shares its folder: groups C, G and H.

  assayd_faults_test.py --program build/host/bin/assayd --root . [--faults build/host/lib/libfaults.so] [Answers Files Memory SlowAnswers ..]
"""
import argparse
import base64
import errno
import glob
import http.client
import json
import mmap
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

OPTIONS = None
MESSAGES = [{"role": "user", "content": "SQLite: VACUUM"}]
FIELDS = {"messages": MESSAGES, "temperature": 0, "max_tokens": 6, "stream": False}

SHORT = {"ids": [2, 5, 7], "temperature": 0, "max_tokens": 1, "stream": False}


class Faults:
    """What engine/daemon/fake/faults.cpp reads: the struct Plan in a file that both sides map."""

    NAMES = ("allocation", "times", "least_bytes", "after_model", "failed", "file_step", "file_errno", "steps")

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile()
        self.file.truncate(8 * len(self.NAMES) + 1024)
        self.map = mmap.mmap(self.file.fileno(), 0)
        self["times"] = 1
        self.environment = {"LD_PRELOAD": OPTIONS.faults, "FAULT_PLAN": self.file.name}

    def __getitem__(self, name):
        return struct.unpack_from("q", self.map, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.map, 8 * self.NAMES.index(name), value)

    def take_trace(self):
        at = 8 * len(self.NAMES)
        trace = self.map[at:at + self["steps"]].decode()
        self["steps"] = 0
        return trace


class Assayd:
    def __init__(self, *flags, faults=None):
        self.log = tempfile.NamedTemporaryFile("r", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}
        with open(self.log.name, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([OPTIONS.program, "--model", OPTIONS.model, "--port", "0", *flags], stderr=log,
                                            env=environment | (faults.environment if faults else {}))
        self.port = None
        while self.port is None and self.process.poll() is None:
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.text())
            self.port = int(found.group(1)) if found else None
            time.sleep(0.002)

    def text(self):
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()

    def call(self, path, body=None):
        """(status, document); ConnectionError when it closed without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode())
            response = connection.getresponse()
            data = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(repr(error)) from error
        finally:
            connection.close()
        return response.status, json.loads(data) if "json" in response.headers.get("Content-Type", "") else data.decode()

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.call("/v1/metrics")[1], re.M).group(1))

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(20)

    def __del__(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Answers(unittest.TestCase):
    """C7, C16, C17 on a model."""

    @classmethod
    def setUpClass(cls):
        cls.d = Assayd("--ctx", "64")

    @classmethod
    def tearDownClass(cls):
        if cls.d.stop() != 0:
            raise AssertionError(cls.d.text())

    def test_prompts_of_nothing(self):
        for body in ({"ids": []}, {"messages": []}, {}):
            self.assertEqual(self.d.call("/v1/chat", body)[0], 400, body)
        status, document = self.d.call("/v1/chat", {"ids": [2], "max_tokens": 2, "stream": False})  # BOS alone
        self.assertEqual(status, 200)
        self.assertEqual(document["usage"]["prompt_tokens"], 1)
        status, document = self.d.call("/v1/chat", {**FIELDS, "messages": [{"role": "user", "content": ""}]})
        self.assertEqual(status, 200, document)

    def test_what_a_tools_grammar_does_not_enforce_is_said(self):
        function = {"name": "f", "parameters": {"type": "object", "properties": {"d": {"type": "string", "pattern": "^a+$"}},
                                                "required": ["d"]}}
        whole = {"type": "function", "function": {"name": "g", "strict": True}}  # nothing of it is lost
        ask = {**FIELDS, "max_tokens": 1, "tools": [whole, {"type": "function", "function": function}], "tool_choice": "auto"}
        where = "tools[1].function.parameters.properties.d.pattern"
        strict = {**ask, "tools": [whole, {"type": "function", "function": {**function, "strict": True}}]}
        d = Assayd("--ctx", "512")
        try:
            for route in ("/v1/chat", "/v1/chat/completions"):
                status, document = d.call(route, ask)
                self.assertEqual((status, document.get("lost")), (200, [{"name": where, "reason": "not enforced"}]), document)
                status, document = d.call(route, strict)
                self.assertEqual((status, document["error"]["code"], document["error"]["param"]), (400, "bad_tools", where))
        finally:
            d.stop()

    def test_frames_that_lie_over_one_another_are_refused(self):
        width = self.d.call("/v1/capabilities")[1]["model"]["width"]
        rows = base64.b64encode(struct.pack(f"<{width}f", *[0.0] * width)).decode()
        frames = [{"position": 1, "rows": rows}, {"position": 1, "rows": rows}]
        status, document = self.d.call("/v1/chat", {**SHORT, "frames": frames})
        self.assertEqual((status, document["error"]["code"]), (400, "bad_request"), document)
        self.assertIn("lies over another", document["error"]["message"])

    def test_a_session_that_memory_had_no_room_for_says_so(self):
        d = Assayd("--ctx", "64", "--cache-gib", "0.00001")
        try:
            said = [d.call("/v1/chat", {**SHORT, "session": name})[1]["prefix"] for name in ("one", "two", "one")]
        finally:
            d.stop()
        self.assertEqual(said, ["cold:first_turn", "cold:first_turn", "cold:evicted"])

    def test_raw_logits_of_none_all_and_too_many(self):
        status, document = self.d.call("/v1/chat", {**SHORT, "raw_logits": 1 << 30})
        self.assertEqual((status, document["error"]["param"]), (400, "raw_logits"))
        vocabulary = int(re.search(r"0 ?(?:\.\.|to) ?(\d+)", document["error"]["message"]).group(1))
        none = self.d.call("/v1/chat", {**SHORT, "raw_logits": 0})[1]
        whole = self.d.call("/v1/chat", {**SHORT, "raw_logits": vocabulary})[1]
        self.assertNotIn("raw_logits", none)
        self.assertEqual(len({token for token, _ in whole["raw_logits"][0]}), vocabulary)
        logits = [logit for _, logit in whole["raw_logits"][0]]
        self.assertEqual(logits, sorted(logits, reverse=True))
        self.assertEqual(self.d.call("/v1/chat", {**SHORT, "raw_logits": vocabulary + 1})[0], 400)

    def test_embeddings_of_nothing_and_of_too_much(self):
        for body, status in (({}, 400), ({"input": ""}, 400), ({"input": []}, 400), ({"input": ["a", ""]}, 400), ({"ids": []}, 400),
                             ({"ids": [[]]}, 400), ({"ids": [2]}, 400), ({"input": "x " * 300}, 400), ({"ids": [[5] * 65]}, 400),
                             ({"input": "a" * (9 << 20)}, 413), ({"ids": [[5] * 64]}, 200)):
            self.assertEqual(self.d.call("/v1/embed", body)[0], status, str(body)[:60])


class SlowAnswers(Answers):
    """C15."""

    def test_200_oneshots_leave_memory_and_session(self):
        session = {**FIELDS, "session": "kept"}
        first = self.d.call("/v1/chat", session)[1]
        for _ in range(50):
            self.assertEqual(self.d.call("/v1/oneshot", SHORT)[0], 200)
        before = self.d.metric("assay_process_resident_bytes")
        for _ in range(150):
            self.d.call("/v1/oneshot", SHORT)
        if OPTIONS.faults:  # a sanitizer keeps freed memory
            self.assertLess(self.d.metric("assay_process_resident_bytes") - before, 1 << 20)
        again = self.d.call("/v1/chat", session)[1]
        self.assertEqual(again["ids"], first["ids"])
        self.assertEqual(again["reused_tokens"], again["usage"]["prompt_tokens"] - 1)


class Files(unittest.TestCase):
    """Group G on a running daemon."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def files(self):
        return sorted(os.path.basename(p) for p in glob.glob(self.folder.name + "/*"))

    def test_two_daemons_share_no_folder(self):
        first = Assayd("--snapshot-dir", self.folder.name)
        second = Assayd("--snapshot-dir", self.folder.name)
        self.assertIsNone(second.port)
        self.assertEqual(second.process.wait(20), 2)
        self.assertIn("another process", second.text())
        self.assertEqual(first.call("/v1/health")[0], 200)
        self.assertEqual(first.stop(), 0)

    def test_names_stay_in_the_folder(self):
        d = Assayd("--snapshot-dir", self.folder.name)
        for name in ("../x", "/etc/passwd", "a/b", "..", ".x", "a\0b", "a" * 65, ""):
            for field in ("session", "prefix"):
                status, document = d.call("/v1/chat", {**FIELDS, field: name})
                self.assertEqual((status, document["error"]["param"]), (400, field), name)
        self.assertEqual(d.stop(), 0)
        self.assertFalse([f for f in self.files() if f.endswith(".kv")])

    def test_a_missing_file_keeps_the_session_in_memory(self):
        d = Assayd("--snapshot-dir", self.folder.name)
        self.assertEqual(d.call("/v1/chat", {**FIELDS, "session": "s"})[0], 200)
        os.unlink(self.snapshot_of("s"))
        again = d.call("/v1/chat", {**FIELDS, "session": "s"})[1]
        self.assertEqual((again["prefix"], again["reused_tokens"] > 0), ("hit", True))
        self.assertEqual(d.stop(), 0)

    def snapshot_of(self, session, limit=5.0):
        """Its file; it may be written after the reply."""
        deadline = time.monotonic() + limit
        while not (found := glob.glob(f"{self.folder.name}/session.{session}.*kv")):
            self.assertLess(time.monotonic(), deadline, self.files())
            time.sleep(0.01)
        return found[0]

    def test_a_read_only_or_tiny_disk_is_said_and_survived(self):
        read_only = "/proc/self/nothing"
        d = Assayd("--snapshot-dir", read_only)
        self.assertIsNone(d.port)
        self.assertEqual(d.process.wait(20), 1)
        self.assertIn(read_only, d.text())
        d = Assayd("--snapshot-dir", self.folder.name)
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (5000, 5000))
        self.assertEqual(d.call("/v1/chat", {**FIELDS, "session": "s"})[0], 200)
        self.assertEqual(d.call("/v1/chat", {**FIELDS, "session": "s"})[1]["prefix"], "hit")  # from memory
        self.assertEqual(d.stop(), 0)
        self.assertEqual(self.files(), ["lock"])


class Memory(unittest.TestCase):
    """H2, G2, G3: the n-th allocation or step of a write fails."""

    def setUp(self):
        if not OPTIONS.faults:
            self.skipTest("a sanitizer must be loaded first")

    def test_a_write_is_in_the_order_that_a_power_cut_needs_and_each_failing_step_leaves_the_old_file(self):
        with tempfile.TemporaryDirectory() as folder:
            faults = Faults()
            d = Assayd("--snapshot-dir", folder, faults=faults)
            events = http.client.HTTPConnection("127.0.0.1", d.port, timeout=20)
            events.request("GET", "/v1/events")
            lines = events.getresponse()

            def snapshot():
                """What became of the next snapshot."""
                while lines.readline() != b"event: snapshot\n":
                    pass
                return json.loads(lines.readline().removeprefix(b"data: "))

            def turn(token):
                """What became of what it wrote."""
                status, document = d.call("/v1/chat", {**SHORT, "ids": [2, token], "session": "s"})
                self.assertEqual(status, 200, document)
                return snapshot()
            self.assertEqual(turn(5)["what"], "written")
            trace = faults.take_trace()
            path = glob.glob(folder + "/session.s.*kv")[0]
            self.assertRegex(trace, r"^ow+frd$")
            cases = [(step, error) for step in range(1, len(trace)) for error in (errno.ENOSPC,)]
            cases += [(2, errno.EIO), (2, errno.EDQUOT), (1, errno.EROFS), (len(trace) - 2, errno.EIO)]
            for i, (step, error) in enumerate(cases):
                with open(path, "rb") as f:
                    old = f.read()
                faults["file_errno"], faults["file_step"] = error, step
                told = turn(10 + i)
                self.assertEqual(told["what"], "failed")
                self.assertIn(os.strerror(error), told["detail"])
                with open(path, "rb") as f:
                    self.assertEqual(f.read(), old, (step, error))
                self.assertEqual(len(os.listdir(folder)), 2, os.listdir(folder))  # the lock and the snapshot
                faults["file_step"], faults["steps"] = 0, 0
            self.assertEqual(turn(6)["what"], "written")
            with open(path, "rb") as f:
                self.assertNotEqual(f.read(), old)
            events.close()
            self.assertEqual(d.stop(), 0)

    def test_loading(self):
        self.load(3)

    def load(self, points):
        """Every failing allocation of a load ends it with a word and exit 1, or was not needed."""
        faults = Faults()
        faults["allocation"] = 1 << 40
        faults["after_model"] = 1 << 40
        d = Assayd("--ctx", "64", faults=faults)
        self.assertIsNotNone(d.port)
        total = (1 << 40) - faults["allocation"]
        self.assertEqual(d.stop(), 0)
        rng = random.Random(points)
        refused = 0
        for n in [1, 2, *sorted(rng.randrange(3, total) for _ in range(points - 2))]:
            faults["failed"], faults["allocation"], faults["after_model"] = 0, 0, n
            d = Assayd("--ctx", "64", faults=faults)
            if d.port is None:
                self.assertEqual(d.process.wait(20), 1, (n, d.text()))
                self.assertRegex(d.text().lower(), r"memory|allocat", n)
                refused += 1
            else:
                faults["allocation"] = 0
                self.assertEqual(d.call("/v1/chat", SHORT)[0], 200, n)
                self.assertEqual(d.stop(), 0, (n, d.text()))
            self.assertEqual(faults["failed"], 1, n)
        self.assertGreater(refused, points // 2)

    def test_requests(self):
        self.requests(8)

    def requests(self, points):
        """One request may fail for want of memory, with its code; the daemon and the next request do not. A single failure
        is made good from the reserve; that is what a JSON value's destructor needs, which may not throw."""
        faults = Faults()
        d = Assayd("--ctx", "128", faults=faults)
        fields = {**FIELDS, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        want = d.call("/v1/chat", fields)[1]["text"]
        rng = random.Random(points)
        for times, least_bytes in ((1, 0), (2, 1024)):
            faults["least_bytes"], faults["allocation"] = least_bytes, 1 << 40
            d.call("/v1/chat", fields)
            total = (1 << 40) - faults["allocation"]
            seen = {"same": 0, "out_of_memory": 0, "closed": 0}
            for i in range(points):
                faults["failed"], faults["times"], faults["allocation"] = 0, times, rng.randrange(1, total + 1)
                outcome = self.outcome(d, {**fields, "stream": i % 2 == 1}, want)
                seen[outcome] += 1
                faults["allocation"], faults["least_bytes"] = 0, least_bytes
                try:
                    self.assertEqual(d.call("/v1/chat", fields)[1]["text"], want)
                except ConnectionError:
                    self.fail((i, d.process.wait(5), d.text()[-2000:]))
                deadline = time.monotonic() + 5
                while d.call("/v1/health")[1]["in_flight"] > 0:  # an answer is there a moment before its slot is free
                    self.assertLess(time.monotonic(), deadline)
                time.sleep(0.001)
            if times == 1:
                self.assertEqual(seen["same"], points, seen)
            else:
                self.assertGreater(seen["out_of_memory"], points // 4, seen)
                self.assertEqual(seen["closed"], 0, seen)
        self.assertEqual(d.stop(), 0, d.text())

    def outcome(self, d, fields, want):
        try:
            status, document = d.call("/v1/chat", fields)
        except ConnectionError:
            return "closed"
        if isinstance(document, dict):
            bad = status != 200
            self.assertTrue(bad or (document["text"] == want and not fields["stream"]), document)
            code = document["error"]["code"] if bad else ""
        else:
            bad = "event: error" in document
            if not bad and "event: done" not in document:
                return "closed"
            self.assertEqual(document.count("event: done") + document.count("event: error"), 1, document)
            self.assertEqual(document.count("event: kairos"), 1, document)
            code = re.search(r'"code":"(\w+)"', document).group(1) if bad else ""
        if bad:
            self.assertEqual(code, "out_of_memory", document)
        return "out_of_memory" if bad else "same"


class SlowMemory(Memory):
    def test_loading(self):
        self.load(60)

    def test_requests(self):
        self.requests(60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--faults", default="")
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.model = os.path.join(OPTIONS.root, "engine", "models", "tiny-gemma4-moe-q4_0.gguf")
    unittest.main(argv=[sys.argv[0], *rest])
