"""The control socket of one engine core: presence, erasure, reports, figures.

A line of JSON each way: `{"body": TEXT, "mac": HEX}`. TEXT is a JSON object; a request's MAC is
HMAC-SHA-256 under the shared secret over "inferscale control 1\\n" + TEXT, an answer's over
"inferscale answer 1\\n" + the request's MAC + TEXT, so that no answer serves for another request.
Every operation can be repeated without harm, so that a replay within its time does none.

  hello         {} -> {schema, version, fingerprint, codec, layers, kv_heads, head_dim, ranks,
                rotation_known, refusal}
  presence      {keys} -> {ready: [bool]}
  erase         {keys, scope, epoch} -> {plan, acknowledged}; with a scope, captures of it that were
                asked for below the epoch end without a block, also those still to come
  erase_scope   {scope, epoch} -> {plan, acknowledged}
  report        {mac: of a transfer request} -> {found, injected_tokens, captured_blocks, fallback}
  stats         {} -> counters

An erased block is never served again from the moment of the answer; its bytes are gone on every
rank once `acknowledged` (see any later answer) has reached `plan`. An idle engine carries a plan
out with its next step: send it a request of one token.
"""

import hashlib
import hmac
import json
import logging
import os
import pathlib
import re
import socket
import socketserver
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST_LINE_BYTES = 16 << 20
MOST_CONNECTIONS = 64
MOST_REPORTS = 4096
SCHEMA = 1
HEX_KEY = re.compile(r"[0-9a-f]{32}")
HEX_SCOPE = re.compile(r"[0-9a-f]{16}")
logger = logging.getLogger("vllm.inferscale")


class ControlError(ValueError):
    """A request that is not carried out; the text goes to the client."""


def mac_of(secret: bytes, prefix: str, text: str) -> str:
    return hmac.new(secret, f"inferscale {prefix}{text}".encode(), hashlib.sha256).hexdigest()


class Reports:
    """What became of the last requests, by the MAC of their transfer."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, mac: str, outcome: dict[str, Any]) -> None:
        with self._lock:
            self._kept[mac] = outcome
            self._kept.move_to_end(mac)
            while len(self._kept) > MOST_REPORTS:
                self._kept.popitem(last=False)

    def get(self, mac: str) -> dict[str, Any] | None:
        with self._lock:
            return self._kept.get(mac)


class NothingStored:
    """A native scheduler's place in the control server of an engine whose model is refused."""

    acknowledged_plan, rotation_known = 0, False

    def __init__(self, refusal: str, folder: str) -> None:
        self._refusal, self._folder = refusal, folder

    def counters(self) -> dict[str, Any]:
        return {"refusal": self._refusal}

    def ready(self, key: bytes) -> bool:
        return False

    def erase(self, keys: list[bytes], scope: int, epoch: int) -> int:
        # An earlier start under other flags may have left KV of the same model.
        if self._folder and any(pathlib.Path(self._folder).glob("rank-*")):
            raise ControlError(f"facts are served as text ({self._refusal}); files of KV in "
                               f"{self._folder} are not erased: remove that folder")
        return 0

    def erase_scope(self, scope: int, epoch: int) -> int:
        return self.erase([], scope, epoch)


class ControlServer:
    """Serves `path`, a Unix socket that its owner alone can open, until `close()`.

    \\param native the native scheduler. Its methods hold the interpreter's lock from beginning to
    end, so calls of this thread and of the engine's do not meet inside it.
    """

    def __init__(self, path: str, secret: bytes, native: Any, reports: Reports,
                 facts: Callable[[], dict[str, Any]]) -> None:
        self._secret, self._native, self._reports, self._facts = secret, native, reports, facts
        self._path = pathlib.Path(path)
        remove_stale(self._path)
        outer = self
        slots = threading.BoundedSemaphore(MOST_CONNECTIONS)

        class Handler(socketserver.StreamRequestHandler):
            timeout = 60

            def handle(self) -> None:
                if not slots.acquire(blocking=False):
                    return
                try:
                    while line := self.rfile.readline(MOST_LINE_BYTES + 1):
                        if len(line) > MOST_LINE_BYTES or not line.endswith(b"\n"):
                            return
                        answer = outer.answer(line)
                        if answer is None:
                            return
                        self.wfile.write(answer)
                except OSError:
                    pass  # the client has gone
                finally:
                    slots.release()

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        mask = os.umask(0o177)
        try:
            self._server = Server(path, Handler)
        finally:
            os.umask(mask)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True,
                                        name="inferscale-control")
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def answer(self, line: bytes) -> bytes | None:
        """The line to send back; None for whoever does not know the secret."""
        try:
            frame = json.loads(line)
            text, mac = frame["body"], frame["mac"]
            known = isinstance(text, str) and isinstance(mac, str) and hmac.compare_digest(
                mac.encode(), mac_of(self._secret, "control 1\n", text).encode())
        except (ValueError, TypeError, KeyError, RecursionError):
            known = False
        if not known:
            logger.warning("inferscale: an unsigned request on the control socket was dropped")
            return None
        try:
            body = self._carry_out(json.loads(text))
        except (ControlError, RecursionError, ValueError) as error:
            body = {"error": str(error)}
        except Exception:
            logger.exception("inferscale: a control request failed")
            body = {"error": "internal error; see vLLM's log"}
        out = json.dumps(body)
        frame = {"body": out, "mac": mac_of(self._secret, f"answer 1\n{mac}", out)}
        return json.dumps(frame).encode() + b"\n"

    def _carry_out(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict):
            raise ControlError("a request is a JSON object")
        expires = request.get("expires_ms")
        if not isinstance(expires, int) or isinstance(expires, bool) or expires < time.time() * 1000:
            raise ControlError("expires_ms is missing or past; check the clocks of both sides")
        operation = request.get("operation")
        if operation == "hello":
            return {"schema": SCHEMA, **self._facts(), **self._progress()}
        if operation == "presence":
            keys = read_keys(request)
            return {"ready": [self._native.ready(key) for key in keys], **self._progress()}
        if operation == "erase":
            fence = read_fence(request) if "scope" in request or "epoch" in request else (0, 0)
            plan = self._native.erase(read_keys(request), *fence)
            return {"plan": plan, **self._progress()}
        if operation == "erase_scope":
            plan = self._native.erase_scope(*read_fence(request))
            return {"plan": plan, **self._progress()}
        if operation == "report":
            mac = request.get("mac")
            outcome = self._reports.get(mac) if isinstance(mac, str) else None
            return {"found": outcome is not None, **(outcome or {})}
        if operation == "stats":
            return {**self._native.counters(), **self._progress()}
        raise ControlError("operation must be hello, presence, erase, erase_scope, report or stats")

    def _progress(self) -> dict[str, Any]:
        return {"acknowledged": self._native.acknowledged_plan,
                "rotation_known": self._native.rotation_known}


def read_keys(request: dict[str, Any]) -> list[bytes]:
    keys = request.get("keys")
    if not isinstance(keys, list) or not all(
            isinstance(key, str) and HEX_KEY.fullmatch(key) for key in keys):
        raise ControlError("keys must be a list of 32 hexadecimal digits each")
    return [bytes.fromhex(key) for key in keys]


def read_fence(request: dict[str, Any]) -> tuple[int, int]:
    scope, epoch = request.get("scope"), request.get("epoch")
    if not isinstance(scope, str) or not HEX_SCOPE.fullmatch(scope):
        raise ControlError("scope must be 16 hexadecimal digits")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 1 << 64:
        raise ControlError("epoch must be an integer from 0")
    return int(scope, 16), epoch


def remove_stale(path: pathlib.Path) -> None:
    """Removes a socket that nobody serves any more. Raises OSError for anything else there."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and is no socket; name another control_socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise FileExistsError(f"{path} is served by another engine; name another control_socket")
    path.unlink()


class ControlClient:
    """One connection to a control socket; for tools and tests. Not thread-safe."""

    def __init__(self, path: str, secret: bytes, timeout_s: float = 10) -> None:
        self._secret = secret
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()
        self._socket.close()

    def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Raises ControlError for an answer that is an error or not signed."""
        request = {"operation": operation, "expires_ms": int((time.time() + 30) * 1000), **fields}
        text = json.dumps(request)
        mac = mac_of(self._secret, "control 1\n", text)
        self._socket.sendall(json.dumps({"body": text, "mac": mac}).encode() + b"\n")
        line = self._file.readline(MOST_LINE_BYTES)
        if not line:
            raise ControlError("the engine closed the connection; do both sides have one secret?")
        frame = json.loads(line)
        expected = mac_of(self._secret, f"answer 1\n{mac}", frame["body"])
        if not hmac.compare_digest(frame["mac"], expected):
            raise ControlError("the answer is not signed with this secret")
        body = json.loads(frame["body"])
        if "error" in body:
            raise ControlError(body["error"])
        return body
