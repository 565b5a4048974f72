"""The program assayd on the shipped model: flags, a conversation, its OpenAI shape, a stop."""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        sys.path.insert(0, os.path.join(OPTIONS.root, "scripts"))
        from assay_client import Client
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = open(os.path.join(cls.folder.name, "log"), "w+", encoding="utf-8")
        cls.process = subprocess.Popen([OPTIONS.program, "--model", OPTIONS.model, "--port", "0", "--numerics", "exact"],
                                       stderr=cls.log, env=cls.environment())
        port = None
        while port is None:
            if cls.process.poll() is not None:
                raise AssertionError("assayd ended: " + cls.text())
            port = re.search(r"listening on http://127\.0\.0\.1:(\d+)", cls.text())
        cls.client = Client(f"http://127.0.0.1:{port.group(1)}", timeout=60)

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
        code = cls.process.wait(30)
        log = cls.text()
        cls.log.close()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"exit code {code}: {log}")

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
        self.assertRegex(self.text(), r"TURN-PHASE id=turn-\d+ prefill=\S+ms\(\d+tok\) .* prefix=hit")

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
