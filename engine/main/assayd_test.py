"""The program assayd on the shipped model: flags, a conversation, its OpenAI shape, a stop."""
import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

OPTIONS = None


class Served(unittest.TestCase):
    FLAGS = ("--numerics", "exact")

    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, os.path.join(OPTIONS.root, "scripts"))
        from assay_client import Client
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = open(os.path.join(cls.folder.name, "log"), "w+", encoding="utf-8")
        cls.process = subprocess.Popen([OPTIONS.program, "--model", OPTIONS.model, "--port", "0", *cls.FLAGS],
                                       stderr=cls.log, env=cls.environment())
        url = None
        while url is None:
            if cls.process.poll() is not None:
                raise AssertionError("assayd ended: " + cls.text())
            url = re.search(r"listening on (http://\S+)\n", cls.text())
        cls.client = Client(url.group(1), timeout=60)

    @staticmethod
    def environment():
        return {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}

    @classmethod
    def text(cls):
        with open(cls.log.name, encoding="utf-8") as f:
            return f.read()

    @classmethod
    def tearDownClass(cls):
        cls.process.send_signal(signal.SIGTERM)
        try:
            code = cls.process.wait(30)
        except subprocess.TimeoutExpired:
            cls.process.kill()
            code = f"{cls.process.wait()} after 30 s"
        cls.log_text = cls.text()
        cls.log.close()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"exit code {code}: {cls.log_text}")

class Stock(Served):
    def test_a_conversation_computes_only_what_is_new(self):
        messages = [{"role": "user", "content": "SQLite: VACUUM"}]
        fields = {"temperature": 0, "max_tokens": 12, "session": "talk", "stream": False}
        first = self.client.call("POST", "/v1/chat", {"messages": messages, **fields})
        self.assertTrue(first["prefix"].startswith("cold:"), first["prefix"])
        self.assertIsInstance(first["kairos"]["eot_margin"], float)
        messages += [{"role": "assistant", "content": first["text"]}, {"role": "user", "content": "And indexes?"}]
        second = self.client.call("POST", "/v1/chat", {"messages": messages, **fields})
        cold = self.client.call("POST", "/v1/oneshot", {"messages": messages, **{k: v for k, v in fields.items() if k != "session"}})
        self.assertGreater(second["reused_tokens"], 0)
        self.assertEqual(cold["reused_tokens"], 0)
        self.assertEqual(second["ids"], cold["ids"])
        self.assertRegex(self.text(), r"TURN-PHASE id=turn-[0-9a-f]{32} prefill=\S+ms\(\d+tok\) .* prefix=hit")

    def test_stream_and_document_agree(self):
        body = {"messages": [{"role": "user", "content": "SQLite: VACUUM"}], "temperature": 0, "max_tokens": 8}
        found = list(self.client.stream(body))
        self.assertEqual([e for e, _ in found if e != "delta"], ["meta", "kairos", "done"])
        document = self.client.call("POST", "/v1/chat", {**body, "stream": False})
        self.assertEqual("".join(d["text"] for e, d in found if e == "delta"), document["text"])
        openai = self.client.call("POST", "/v1/chat/completions", {**body, "model": "any", "logprobs": True, "top_logprobs": 2})
        self.assertEqual(openai["choices"][0]["message"]["content"], document["text"])
        self.assertEqual(len(openai["choices"][0]["logprobs"]["content"]), openai["usage"]["completion_tokens"])

    def test_declares_itself(self):
        capabilities = self.client.call("GET", "/v1/capabilities")
        names = [c["name"] for c in capabilities["capabilities"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual({a["proof"] for a in capabilities["armed"]}, {None})
        self.assertEqual(self.client.call("GET", "/v1/proofs"), {"ops": {}})
        ids = self.client.call("POST", "/tokenize", {"content": "SQLite: VACUUM"})["tokens"]
        self.assertEqual(self.client.call("POST", "/detokenize", {"tokens": ids})["content"], "SQLite: VACUUM")
        self.assertEqual(self.client.call("GET", "/v1/health")["state"], "ready")


    def test_examples_of_the_docs(self):
        ran = 0
        for page in ("docs/daemon.md", "README.md"):
            with open(os.path.join(OPTIONS.root, page), encoding="utf-8") as f:
                blocks = re.findall(r"```sh\n(.*?)```", f.read(), re.S)
            for line in (line for block in blocks for line in block.splitlines() if line.startswith("curl ")):
                command = line.replace("http://127.0.0.1:3000", f"http://127.0.0.1:{self.client.port}")
                out = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
                self.assertEqual(out.returncode, 0, line)
                self.assertTrue(out.stdout and '"error"' not in out.stdout, (line, out.stdout))
                ran += 1
        self.assertGreater(ran, 5)


def proven_set(folder, card):
    """A proven set that arms gemv_quant=avx2 with the sources as they are."""
    explained = subprocess.run([sys.executable, "-B", os.path.join(OPTIONS.root, "scripts", "digest.py"), "--root", OPTIONS.root,
                                "explain", "gemv_quant", "avx2"], capture_output=True, text=True, check=True).stdout
    digest = re.search(r"^([0-9a-f]{64})  gemv_quant avx2:", explained, re.M).group(1)
    entry = {"variant": "avx2", "ab_record": "ab" * 32, "parity_record": "cd" * 32, "source_digest": digest, "files": {}, "speedup": 2.0}
    path = os.path.join(folder, "proven_host.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"schema": "assay-proven", "schema_version": "1.0.0", "recorded_utc": "2026-01-01T00:00:00Z", "card": card,
                   "backend": "host", "cuda": "none", "commit": "0" * 40, "scratch": False, "ops": {"gemv_quant": {"any": entry}}}, f)
    return path


def serve(*flags):
    """A daemon of its own, until tearDownClass."""
    class One(Served):
        FLAGS = flags
    One.setUpClass()
    return One


class Snapshots(unittest.TestCase):
    def turn(self, one, session="talk"):
        return one.client.call("POST", "/v1/chat", {"messages": [{"role": "user", "content": "SQLite: VACUUM"}], "temperature": 0,
                                                    "max_tokens": 4, "session": session, "stream": False})

    def test_a_stop_waits_for_the_disk_and_others_files_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            one = serve("--snapshot-dir", folder)
            cold = self.turn(one)
            one.tearDownClass()  # at once: the snapshot is still on its way
            files = [f for f in os.listdir(folder) if f.endswith(".kv")]
            self.assertEqual(len(files), 1)
            self.assertRegex(files[0], r"^session\.talk\.[0-9a-f]{16}\.kv$")
            with open(os.path.join(folder, files[0]), "rb") as f:
                before = f.read()
            other = serve("--snapshot-dir", folder, "--numerics", "exact")
            self.assertEqual(self.turn(other)["prefix"], "cold:snapshot_foreign (snapshot of another numerics)")
            other.tearDownClass()
            with open(os.path.join(folder, files[0]), "rb") as f:
                self.assertEqual(f.read(), before)
            again = serve("--snapshot-dir", folder)
            warm = self.turn(again)
            self.assertEqual(warm["prefix"], "hit")
            self.assertEqual(warm["ids"], cold["ids"])
            # The disk fails: the turn does not, and the log has the reason.
            os.rename(folder, folder + ".away")
            self.assertEqual(self.turn(again, "more")["ids"], cold["ids"])
            end = time.monotonic() + 20
            while "snapshot session.more" not in again.text() and time.monotonic() < end:
                time.sleep(0.02)
            os.rename(folder + ".away", folder)
            self.assertRegex(again.text(), r"\[error\] snapshot session\.more: .*No such file")
            again.tearDownClass()


    def test_what_is_no_regular_file_holds_nobody_up(self):
        for make in (os.mkfifo, os.mkdir):
            with self.subTest(make.__name__), tempfile.TemporaryDirectory() as folder:
                one = serve("--snapshot-dir", folder)
                self.turn(one)
                one.tearDownClass()
                path, = (os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".kv"))
                os.remove(path)
                make(path)
                again = serve("--snapshot-dir", folder)
                self.assertEqual(self.turn(again)["prefix"], "cold:snapshot_damaged (snapshot that is not a regular file)")
                end = time.monotonic() + 20
                while not os.path.isfile(path) and time.monotonic() < end:  # what lay there made way
                    time.sleep(0.02)
                os.remove(path)
                make(path)  # while the session is open
                self.assertEqual(self.turn(again)["prefix"], "hit")
                again.tearDownClass()
                self.assertIn(f"[error] snapshot session.talk: {path}: is not a regular file", again.log_text)
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "lock"))
            out = subprocess.run([OPTIONS.program, "--model", OPTIONS.model, "--snapshot-dir", folder], capture_output=True, text=True,
                                 timeout=60, env=Served.environment())
            self.assertEqual(out.returncode, 2, out.stderr)
            self.assertIn(os.path.join(folder, "lock") + ": is not a regular file", out.stderr)


class Proven(unittest.TestCase):
    def serve(self, profile):
        one = serve("--profile", profile)
        self.addCleanup(one.tearDownClass)
        return one

    def test_what_is_armed_names_its_proof(self):
        with tempfile.TemporaryDirectory() as folder:
            other = self.serve(proven_set(folder, "no such card"))
            armed = other.client.call("GET", "/v1/capabilities")["armed"]
            self.assertEqual({(a["variant"], a["proof"]) for a in armed}, {("stock", None)})
            card = re.search(r"card 'no such card', this is '([^']*)'", other.text()).group(1)
            path = proven_set(folder, card)
            one = self.serve(path)
            armed = {a["op"]: a for a in one.client.call("GET", "/v1/capabilities")["armed"]}
            self.assertEqual(armed["gemv_quant"], {"op": "gemv_quant", "variant": "avx2", "why": "profile", "proof":
                             "record abababababababab, parity cdcdcdcdcdcdcdcd, in " + path})
            self.assertIsNone(armed["gemm_quant"]["proof"])
            proofs = one.client.call("GET", "/v1/proofs")
            self.assertEqual(proofs["set"], path)
            self.assertEqual(list(proofs["ops"]), ["gemv_quant"])
            self.assertEqual(proofs["ops"]["gemv_quant"]["ab_record"], "ab" * 32)


class Addresses(unittest.TestCase):
    def test_an_ipv6_address_has_brackets_in_its_url(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no ::1 here: {error}")
        one = serve("--host", "::1")
        self.addCleanup(one.tearDownClass)
        self.assertRegex(one.text(), r"listening on http://\[::1\]:\d+\n")
        self.assertEqual(one.client.call("GET", "/v1/health")["state"], "ready")


class Flags(unittest.TestCase):
    def run_assayd(self, *flags):
        return subprocess.run([OPTIONS.program, *flags], capture_output=True, text=True, timeout=60, env=Served.environment())

    def test_help_fits_a_screen_and_ends_in_an_example(self):
        out = self.run_assayd("--help")
        self.assertEqual(out.returncode, 0)
        self.assertLessEqual(len(out.stdout.splitlines()), 40)
        self.assertIn("assayd --model", out.stdout.splitlines()[-1])

    def test_bad_flags(self):
        for flags, code, words in ((("--model", OPTIONS.model, "--port", "70000"), 2, "--port"),
                                   (("--model", OPTIONS.model, "--host", "0.0.0.0"), 2, "--api-key-file"),
                                   (("--model", OPTIONS.model, "--queue", "0"), 2, "--queue"),
                                   (("--model", "/nonexistent"), 3, "/nonexistent"), ((), 2, "--model")):
            out = self.run_assayd(*flags)
            self.assertEqual(out.returncode, code, (flags, out.stderr))
            self.assertIn(words, out.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--root", required=True)
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.model = os.path.join(OPTIONS.root, "engine", "models", "tiny-gemma4-moe-q4_0.gguf")
    unittest.main(argv=[sys.argv[0], *rest])
