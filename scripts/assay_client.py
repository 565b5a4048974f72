#!/usr/bin/env python3
"""Talks to assayd: a terminal chat, or one question. Standard library only.

  scripts/assay_client.py                              # chat; /new starts over, /stats shows the last turn, Ctrl-C stops a reply
  scripts/assay_client.py "What does VACUUM do?"       # one answer on stdout
  scripts/assay_client.py --health | --metrics | --capabilities
"""
import argparse
import http.client
import json
import ssl
import sys
import urllib.parse


class AssayError(Exception):
    """What the server refused, with its code."""

    def __init__(self, error):
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.error = error


class Client:
    def __init__(self, url="http://127.0.0.1:3000", key=None, timeout=600, ca_file=None):
        parts = urllib.parse.urlsplit(url)
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self.host, self.port, self.timeout = parts.hostname, parts.port or 3000, timeout
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = "Bearer " + key

    def _open(self, method, path, body=None):
        if self.tls:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.tls)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        connection.request(method, path, None if body is None else json.dumps(body).encode(), self.headers)
        response = connection.getresponse()
        if response.status >= 400 and path != "/v1/health":
            data = response.read()
            connection.close()
            try:
                raise AssayError(json.loads(data)["error"])
            except (ValueError, KeyError):
                raise AssayError({"code": response.status, "message": data[:200].decode(errors="replace")}) from None
        return connection, response

    def call(self, method, path, body=None):
        connection, response = self._open(method, path, body)
        data = response.read()
        connection.close()
        return json.loads(data) if "json" in response.headers.get("Content-Type", "") else data.decode()

    def stream(self, body, path="/v1/chat"):
        """Yields (event, data); raises AssayError for `event: error`. Closing the generator ends the turn."""
        connection, response = self._open("POST", path, body)
        event = None
        try:
            for line in response:
                line = line.rstrip(b"\n")
                if line.startswith(b"event: "):
                    event = line[7:].decode()
                elif line.startswith(b"data: "):
                    data = json.loads(line[6:])
                    if event == "error":
                        raise AssayError(data["error"])
                    yield event, data
        finally:
            # `Connection: close` hands the socket to the response: that is what must go for the server to notice.
            response.close()
            connection.close()

    def chat(self, messages, **fields):
        """The whole reply as text."""
        return "".join(d["text"] for e, d in self.stream({"messages": messages, **fields}) if e == "delta")


def reply(client, messages, fields, out):
    """Prints a reply as it comes; (text, last frames by event)."""
    text, last = "", {}
    turn = client.stream({"messages": messages, **fields})
    try:
        for event, data in turn:
            last[event] = data
            if event == "delta":
                out.write(data.get("reasoning", "") + data["text"])
                out.flush()
                text += data["text"]
            elif event == "tool_call":
                out.write(f"[calls {data['name']}({data['arguments']})]")
    except KeyboardInterrupt:
        out.write(" [stopped]")
    finally:
        turn.close()
    out.write("\n")
    return text, last


def stats(last):
    done, kairos, meta = last.get("done"), last.get("kairos"), last.get("meta")
    if not done:
        return "the last turn did not finish"
    phases = "  ".join(f"{k} {v:.1f} ms" for k, v in done["phases_ms"].items())
    return (f"{phases}  {done['tokens_per_s']:.1f} tokens/s  prefix {done['prefix']}  "
            f"{meta['reused_tokens']} of {meta['prompt_tokens']} tokens reused  margin {kairos['eot_margin']} {kairos['verdict']}")


def terminal(client, fields):
    messages, last = [], {}
    if sys.stdin.isatty():
        print("/new starts over, /stats shows the last turn, Ctrl-D leaves", file=sys.stderr)
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if line == "/new":
            messages = []
        elif line == "/stats":
            print(stats(last))
        elif line.strip():
            messages.append({"role": "user", "content": line})
            try:
                text, last = reply(client, messages, fields, sys.stdout)
                messages.append({"role": "assistant", "content": text})
            except AssayError as error:
                print(error, file=sys.stderr)
                messages.pop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", help="one question; without it a chat")
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    parser.add_argument("--api-key-file")
    parser.add_argument("--ca-file", help="certificate to trust where --url is https://")
    parser.add_argument("--session", help="name of the conversation's cache on the server")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--thinking", action="store_true")
    for name in ("health", "metrics", "capabilities"):
        parser.add_argument("--" + name, action="store_true")
    o = parser.parse_args()
    key = None
    if o.api_key_file:
        with open(o.api_key_file, encoding="utf-8") as f:
            key = f.read().strip()
    client = Client(o.url, key, ca_file=o.ca_file)
    fields = {k: v for k, v in (("session", o.session), ("max_tokens", o.max_tokens), ("temperature", o.temperature),
                                ("thinking", o.thinking or None)) if v is not None}
    try:
        for name in ("health", "metrics", "capabilities"):
            if getattr(o, name):
                answer = client.call("GET", "/v1/" + name)
                print(answer if isinstance(answer, str) else json.dumps(answer, indent=1))
                return 0
        if o.prompt is None:
            return terminal(client, fields)
        reply(client, [{"role": "user", "content": o.prompt}], fields, sys.stdout)
        return 0
    except AssayError as error:
        print(f"assay_client: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"assay_client: {o.url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
