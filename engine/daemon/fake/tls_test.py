"""The daemon over TLS, with a certificate made here by openssl. Exit 77 without openssl or in a build without TLS.

  tls_test.py --program build/host/bin/fake_assayd
"""
import argparse
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts"))
from assay_client import Client
from daemon_client import Daemon, Stream, frames, read_head, read_response, request_bytes, script, wait_closed

OPTIONS = None
SLACK = 1


def make_certificate(folder, name):
    cert, key = os.path.join(folder, name + ".crt"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key


class TlsDaemon(Daemon):
    def __init__(self, *flags):
        self.context = ssl.create_default_context(cafile=OPTIONS.cert)
        super().__init__(OPTIONS.program, "--tls-cert", OPTIONS.cert, "--tls-key", OPTIONS.key, *flags)

    def plain(self, timeout=10.0):
        return super().connect(timeout)

    def connect(self, timeout=10.0):
        return self.context.wrap_socket(self.plain(timeout), server_hostname="127.0.0.1")


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = TlsDaemon("--head-deadline-ms", str(400 * min(SLACK, 3)))

    @classmethod
    def tearDownClass(cls):
        code, log = cls.d.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {log[-2000:]}")

    def tearDown(self):
        self.assertLess(self.d.wait_idle(), 5)
        self.assertEqual(self.d.health()["state"], "ready")

    def test_streams_and_documents(self):
        found = frames(self.d.post("/v1/chat", script(tokens=["a", "b"], delay_ms=20)).body)
        self.assertEqual([e for e, _ in found], ["meta", "delta", "delta", "kairos", "done"])
        # Larger than a TLS record, and than what the socket takes at once.
        text = "x" * 3_000_000
        self.assertEqual(self.d.post("/v1/chat", script(stream=False, tokens=[text])).json()["text"], text)
        self.assertEqual(len(self.d.post("/tokenize", {"content": "y" * 500_000}).json()["tokens"]), 500_000)

    def test_the_client_for_people(self):
        client = Client(f"https://127.0.0.1:{self.d.port}", timeout=20, ca_file=OPTIONS.cert)
        found = list(client.stream(script(tokens=["a", "b"])))
        self.assertEqual("".join(d["text"] for e, d in found if e == "delta"), "ab")
        with self.assertRaises(ssl.SSLCertVerificationError):
            Client(f"https://127.0.0.1:{self.d.port}", timeout=20).call("GET", "/v1/health")

    def test_pipelined_requests_keep_their_order(self):
        with self.d.connect() as s:
            for i in range(20):
                s.sendall(request_bytes("POST", "/tokenize", {"content": chr(65 + i)}, close=False))
            rest = b""
            for i in range(20):
                response = read_response(s, rest)
                self.assertEqual(response.json()["tokens"], [65 + i])
                rest = response.rest

    def test_a_client_that_leaves_frees_its_turn(self):
        for leave in ("close_notify", "fin", "reset"):
            s = Stream(self.d, "/v1/chat", script(tokens=["x"], repeat=200, delay_ms=20))
            s.next()
            if leave == "reset":
                s.reset()
            elif leave == "fin":
                s.socket.close()
            else:
                try:
                    s.socket.settimeout(0.05)
                    s.socket.unwrap()
                except (OSError, ValueError):
                    pass  # the stream goes on, so its farewell does not come
                s.socket.close()
            self.assertLess(self.d.wait_idle(), 1.0 * SLACK, leave)

    def test_versions(self):
        for version, good in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=OPTIONS.cert)
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = version
            context.minimum_version = version
            try:
                context.wrap_socket(self.d.plain(), server_hostname="127.0.0.1").close()
                self.assertTrue(good, version)
            except (ssl.SSLError, ConnectionError):
                self.assertFalse(good, version)

    def test_plain_http_is_told(self):
        with self.d.plain() as s:
            s.sendall(request_bytes("GET", "/v1/health"))
            response = read_response(s)
        self.assertEqual((response.status, response.code()), (400, "bad_request"))
        self.assertIn("https://", response.json()["error"]["message"])
        for bytes_ in (b"\x00\x01\x02", b"SSH-2.0-x\r\n"):
            with self.d.plain() as s:
                s.sendall(bytes_)
                self.assertEqual(read_head(s)[0], 400)

    def test_half_open_handshakes_have_a_deadline(self):
        hello = ssl.MemoryBIO()
        client = self.d.context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
        with self.assertRaises(ssl.SSLWantReadError):
            client.do_handshake()
        whole = hello.read()
        for sent in (b"", whole[:1], whole[:40], whole):
            with self.d.plain() as s:
                s.sendall(sent)
                self.assertLess(wait_closed(s, 2.0 * SLACK), 1.5 * SLACK, len(sent))
        with self.d.connect() as s:  # a handshake, then no request
            self.assertLess(wait_closed(s, 2.0 * SLACK), 1.5 * SLACK)
        many = [self.d.plain() for _ in range(200)]
        started = time.monotonic()
        self.assertEqual(self.d.health()["state"], "ready")
        self.assertLess(time.monotonic() - started, 0.5 * SLACK)
        for s in many:
            s.close()

    def test_garbage_in_and_after_the_handshake(self):
        for junk in (b"\x16\x03\x01\xff\xff" + b"A" * 5000, b"\x16" * 300):
            with self.d.plain() as s:
                s.sendall(junk)
                wait_closed(s, 2.0 * SLACK)
        with self.d.connect() as s:
            raw = socket.socket(fileno=os.dup(s.fileno()))
            raw.sendall(b"not a record of TLS")
            raw.close()
            wait_closed_tls(s, 2.0 * SLACK)


def wait_closed_tls(s, limit):
    s.settimeout(limit)
    try:
        while s.recv(65536):
            pass
    except (ssl.SSLError, ConnectionError):
        pass


class Start(unittest.TestCase):
    def test_bad_files_and_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            other_cert, other_key = make_certificate(folder, "other")
            locked = os.path.join(folder, "locked.key")
            subprocess.run(["openssl", "ec", "-in", other_key, "-aes128", "-passout", "pass:secret", "-out", locked], check=True,
                           capture_output=True)
            empty = os.path.join(folder, "empty")
            open(empty, "w").close()
            for cert, key, code, words in ((folder + "/missing", OPTIONS.key, 3, "--tls-cert " + folder + "/missing"),
                                           (empty, OPTIONS.key, 3, "--tls-cert"), (OPTIONS.cert, empty, 3, "--tls-key"),
                                           (OPTIONS.cert, other_key, 3, "--tls-key"), (other_cert, locked, 3, "--tls-key"),
                                           (OPTIONS.cert, "", 2, "--tls-key")):
                out = subprocess.run([OPTIONS.program, "--tls-cert", cert, "--tls-key", key], capture_output=True, text=True, timeout=20,
                                     stdin=subprocess.DEVNULL)
                self.assertEqual(out.returncode, code, (cert, key, out.stderr))
                self.assertIn(words, out.stderr)

    def test_others_need_a_key_all_the_same(self):
        tls = ("--tls-cert", OPTIONS.cert, "--tls-key", OPTIONS.key, "--host", "0.0.0.0")
        out = subprocess.run([OPTIONS.program, *tls], capture_output=True, text=True, timeout=20)
        self.assertEqual(out.returncode, 2)
        self.assertIn("--api-key-file", out.stderr)

    def test_stops_in_mid_stream(self):
        d = TlsDaemon("--grace-ms", "100")
        s = Stream(d, "/v1/chat", script(tokens=["x"], repeat=500, delay_ms=20))
        s.next()
        waiting = d.plain()  # no handshake
        d.process.terminate()
        self.assertEqual(s.rest()[-1][0], "aborted")
        self.assertEqual(d.process.wait(10 * SLACK), 0)
        waiting.close()
        d.process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--slack", type=int, default=1)
    OPTIONS, rest = parser.parse_known_args()
    SLACK = OPTIONS.slack
    if not shutil.which("openssl"):
        print("skipped: openssl is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as work:
        OPTIONS.cert, OPTIONS.key = make_certificate(work, "server")
        probe = subprocess.run([OPTIONS.program, "--tls-cert", work + "/missing", "--tls-key", OPTIONS.key], capture_output=True,
                               text=True, timeout=20)
        if "no TLS" in probe.stderr:
            print("skipped: the daemon was built without TLS (libssl-dev)")
            sys.exit(77)
        unittest.main(argv=[sys.argv[0], *rest])
