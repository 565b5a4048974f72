"""The status page in headless Chromium, driven over WebDriver with nothing but the standard library. Exit 77 without it.

  status_page_test.py --program build/host/bin/fake_assayd --out build/host
"""
import argparse
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon_client import Daemon, Stream, script

OPTIONS = None
TAB = "\ue004"


class Browser:
    """One window. Chromium may ask nobody but this machine: other names resolve to nothing, and every request is logged."""

    def __init__(self, chromedriver, chromium):
        self.profile = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                break
        else:
            raise RuntimeError("chromedriver did not start")
        self.base = f"http://127.0.0.1:{found.group(1)}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
                     "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--window-size=1000,1200",
                     "--user-data-dir=" + self.profile.name]
        self.base += "/" + self.call("POST", "", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"binary": chromium, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})["sessionId"]

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def go(self, url):
        self.call("POST", "/url", {"url": url})

    def js(self, expression):
        return self.call("POST", "/execute/sync", {"script": "return " + expression, "args": []})

    def until(self, expression, what, limit=20.0):
        end = time.monotonic() + limit
        while not (value := self.js(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: still not so after {limit} s")
            time.sleep(0.05)
        return value

    def press(self, key, shift=False):
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        if shift:
            keys = [{"type": "keyDown", "value": "\ue008"}, *keys, {"type": "keyUp", "value": "\ue008"}]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.communicate(timeout=20)
            self.profile.cleanup()


class Page(unittest.TestCase):
    FLAGS = ()

    def setUp(self):
        self.d = Daemon(OPTIONS.program, *self.FLAGS)
        self.addCleanup(self.d.stop)
        self.browser = Browser(OPTIONS.chromedriver, OPTIONS.chromium)
        self.addCleanup(self.browser.close)
        self.url = f"http://127.0.0.1:{self.d.port}/"
        self.browser.go(self.url)

    def assert_quiet(self):
        """No complaint on the console, and nobody else was asked for anything."""
        self.assertEqual([e for e in self.browser.log("browser") if e["level"] in ("SEVERE", "WARNING")], [])
        asked = []
        for entry in self.browser.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent" and message["params"]["documentURL"].startswith(self.url):
                asked.append(message["params"]["request"]["url"])
        self.assertIn(self.url, asked)
        self.assertEqual([u for u in asked if not u.startswith((self.url, "data:"))], [])


class Open(Page):
    def test_shows_a_turn_and_takes_the_keyboard(self):
        b = self.browser
        b.until("document.querySelectorAll('#armed tr').length", "what is armed")
        self.assertEqual(b.js("[...document.querySelectorAll('#armed td')].map(c => c.textContent)"),
                         ["gemv_quant", "avx2", "script", "record 0123456789abcdef, in results/fake"])
        self.assertEqual(b.js("document.querySelector('#armed a').getAttribute('href')"), "/v1/proofs#gemv_quant")
        self.assertEqual(self.d.get("/v1/proofs").json(), {"ops": {}})
        self.assertEqual(b.js("document.getElementById('rows').textContent.trim()"), "none yet")
        b.until("document.getElementById('state').textContent == 'connected'", "the events")

        # While a turn runs its speed is shown; afterwards its phases.
        turn = Stream(self.d, "/v1/chat", script(tokens=["x"], repeat=60, delay_ms=40, prefill_ms=200, chunks=4, session="s"))
        live = b.until("parseFloat(document.getElementById('speed').textContent)", "the speed of a running turn")
        self.assertEqual(self.d.health()["in_flight"], 1, "the turn was over before its speed was seen")
        self.assertTrue(5 < live < 26, live)
        turn.rest()
        b.until("document.querySelectorAll('#rows .stack').length == 1", "the turn's bar")
        widths = b.js("Object.fromEntries([...document.querySelectorAll('#rows .stack span')].map("
                      "s => [s.className, s.getBoundingClientRect().width]))")
        self.assertGreater(widths["decode"], 3 * widths["prefill"])
        self.assertGreater(widths["prefill"], 5)
        label = b.js("document.querySelector('#rows .stack').getAttribute('aria-label')")
        self.assertRegex(label, r"prefill \d+\.\d ms, recall 0\.0 ms, decode \d+\.\d ms, post 0\.0 ms")
        self.d.post("/v1/chat", script(tokens=["x"], session="s"))
        b.until("document.querySelectorAll('#rows .stack').length == 2", "the second turn's bar")
        b.until("document.getElementById('hits').textContent == '50 %'", "the hit rate")

        # Tab goes through every control in the order of the page, and one sees where it is.
        controls = b.js("[...document.querySelectorAll('a[href], input, button, [tabindex=\"0\"]')]"
                        ".filter(e => !e.closest('[hidden]')).map(e => e.textContent)")
        self.assertEqual(len(controls), 8)  # the skip link, two turns, a proof, four links
        b.js("document.body.focus()")
        seen = []
        for _ in controls:
            b.press(TAB)
            seen.append(b.js("document.activeElement.textContent"))
            self.assertTrue(b.js("document.activeElement.matches(':focus-visible')"), seen[-1])
            self.assertGreaterEqual(b.js("parseFloat(getComputedStyle(document.activeElement).outlineWidth)"), 2, seen[-1])
            self.assertNotEqual(b.js("getComputedStyle(document.activeElement).outlineStyle"), "none")
            self.assertTrue(b.js("(r => r.width > 0 && r.right > 0 && r.left < innerWidth)"
                                 "(document.activeElement.getBoundingClientRect())"), seen[-1])
        self.assertEqual(seen, controls)
        # A turn that ends does not take the focus away.
        for _ in controls[2:]:
            b.press(TAB, shift=True)
        self.assertEqual(b.js("document.activeElement.tagName"), "TR")
        self.d.post("/v1/chat", script(tokens=["x"]))
        b.until("document.querySelectorAll('#rows .stack').length == 3", "the third turn's bar")
        self.assertEqual(b.js("document.activeElement.textContent"), controls[1])
        b.screenshot(os.path.join(OPTIONS.out, "status_page.png"))
        self.assert_quiet()


class Key(Page):
    FLAGS = ("--api-key", "secret-secret")

    def test_asks_for_the_key_and_shows_what_a_link_cannot(self):
        b = self.browser
        b.until("!document.getElementById('key').hidden", "the question for the key")
        b.js("document.getElementById('key-text').value = 'secret-secret'")
        b.js("document.querySelector('#key button').click()")
        b.until("document.getElementById('state').textContent == 'connected'", "the events")
        self.assertTrue(b.js("document.getElementById('key').hidden"))
        b.js("document.querySelector('a[href=\"/v1/capabilities\"]').click()")
        b.until("document.getElementById('shown').textContent.includes('\"capabilities\"')", "the answer")
        self.assertEqual(b.js("document.activeElement.id"), "shown")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True)
    OPTIONS, rest = parser.parse_known_args()
    OPTIONS.chromedriver, OPTIONS.chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not (OPTIONS.chromedriver and OPTIONS.chromium):
        print("skipped: chromium and chromedriver are not installed (scripts/setup --full)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
