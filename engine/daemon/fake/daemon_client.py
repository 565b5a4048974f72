"""Raw sockets against the daemon, for its tests and the load program: nothing here tidies the bytes."""
import json
import re
import select
import signal
import socket
import subprocess
import time


class Daemon:
    """A running fake_assayd."""

    def __init__(self, program, *flags, prefix=()):
        self.process = subprocess.Popen([*prefix, program, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("PORT "):
            raise RuntimeError("the daemon did not start: " + self.process.stderr.read())
        self.port = int(line.split()[1])

    def connect(self, timeout=10.0):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def stop(self, sig=signal.SIGTERM, timeout=20):
        """(exit code, log)"""
        self.process.send_signal(sig)
        log = self.process.communicate(timeout=timeout)[1]
        return self.process.returncode, log

    def get(self, path):
        return self.request("GET", path)

    def request(self, method, path, body=None, headers=(), timeout=10.0):
        with self.connect(timeout) as s:
            s.sendall(request_bytes(method, path, body, headers))
            return read_response(s)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def health(self):
        return self.get("/v1/health").json()

    def metrics(self):
        values = {}
        for line in self.get("/v1/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def wait_idle(self, limit=5.0):
        """Seconds until nothing is in flight."""
        started = time.monotonic()
        while self.health()["in_flight"] != 0:
            if time.monotonic() - started > limit:
                raise AssertionError(f"still in flight after {limit} s: {self.health()}")
            time.sleep(0.01)
        return time.monotonic() - started


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def code(self):
        return self.json()["error"]["code"]

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


def request_bytes(method, path, body=None, headers=(), close=True):
    if body is None:
        data = b""
    elif isinstance(body, bytes):
        data = body
    else:
        data = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if close:
        lines.append("Connection: close")
    if body is not None:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def script(stream=True, **fields):
    """A request whose last message is a script for the backend; fields that the script does not know are the request's."""
    known = {"tokens", "repeat", "delay_ms", "prefill_ms", "chunks", "margin", "calls", "reasoning", "fail", "fail_at",
             "throw_at", "prompt_tokens"}
    inner = {k: v for k, v in fields.items() if k in known}
    outer = {k: v for k, v in fields.items() if k not in known}
    return {"messages": [{"role": "user", "content": json.dumps(inner)}], "stream": stream, **outer}


def read_head(s, buffer=b""):
    while b"\r\n\r\n" not in buffer:
        more = s.recv(65536)
        if not more:
            raise ConnectionError(f"closed in the head: {buffer!r}")
        buffer += more
    head, rest = buffer.split(b"\r\n\r\n", 1)
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1])
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
    if status == 100:
        return read_head(s, rest)
    return status, headers, rest


def read_response(s, buffer=b""):
    status, headers, body = read_head(s, buffer)
    if "content-length" in headers:
        length = int(headers["content-length"])
        while len(body) < length:
            more = s.recv(65536)
            if not more:
                raise ConnectionError("closed in the body")
            body += more
        response = Response(status, headers, body[:length])
        response.rest = body[length:]
        return response
    while more := s.recv(65536):
        body += more
    response = Response(status, headers, body)
    response.rest = b""
    return response


def frames(data):
    """[(event, data)] of a whole SSE body; every byte must belong to a well-formed frame."""
    text = data.decode("utf-8")  # strict: a stream is valid UTF-8
    if text and not text.endswith("\n\n"):
        raise AssertionError(f"the stream ends inside a frame: {text[-200:]!r}")
    out = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        match = re.fullmatch(r"event: ([a-z_]+)\ndata: ([^\n]*)", block)
        if not match:
            raise AssertionError(f"not a frame: {block!r}")
        out.append((match.group(1), json.loads(match.group(2))))
    return out


class Stream:
    """One SSE request, read frame by frame."""

    def __init__(self, daemon, path, body=None, timeout=10.0):
        self.socket = daemon.connect(timeout)
        self.socket.sendall(request_bytes("GET" if body is None else "POST", path, body))
        self.status, self.headers, self.buffer = read_head(self.socket)
        self.id = self.headers.get("x-request-id")

    def next(self):
        """The next frame, or None at the end."""
        while b"\n\n" not in self.buffer:
            more = self.socket.recv(65536)
            if not more:
                return None
            self.buffer += more
        block, self.buffer = self.buffer.split(b"\n\n", 1)
        if block.startswith(b":") or not block:
            return self.next()
        return frames(block + b"\n\n")[0]

    def until(self, event):
        while (frame := self.next()) is not None:
            if frame[0] == event:
                return frame[1]
        raise AssertionError(f"the stream ended without {event}")

    def rest(self):
        out = []
        while (frame := self.next()) is not None:
            out.append(frame)
        return out

    def close(self):
        self.socket.close()

    def __del__(self):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def wait_closed(s, limit):
    """Seconds until the other side closed; AssertionError past the limit."""
    started = time.monotonic()
    s.settimeout(limit)
    try:
        while s.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError as error:
        raise AssertionError(f"not closed within {limit} s") from error
    return time.monotonic() - started


def readable(s, seconds):
    return bool(select.select([s], [], [], seconds)[0])
