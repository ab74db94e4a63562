"""Runs the built program as a user would: its own data folder, one thread, a tiny model."""

import hashlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BINARY = os.environ["INFERSCALE_BINARY_PATH"]
TINY_MODEL = str(pathlib.Path(os.environ["INFERSCALE_TINY_MODELS_DIR"]) / "llama_norm.gguf")
TIMEOUT_S = 120


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="inferscale-cli-"))
        self.data = self.home / "data"
        self.addCleanup(self._remove_home)
        cache = os.environ.get("INFERSCALE_CACHE_DIR") or os.path.expanduser("~/.cache/inferscale")
        # Nothing of the caller's own settings may reach the program.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "INFERSCALE_CACHE_DIR": cache,
            "INFERSCALE_DATA_DIR": str(self.data),
            "INFERSCALE_MODEL": TINY_MODEL,
            "INFERSCALE_THREADS": "1",
            "INFERSCALE_CONTEXT_TOKENS": "2048",
            "INFERSCALE_KV_HOST_BYTES": "64M",
        }

    def _remove_home(self):
        for folder, _, _ in os.walk(self.home):
            os.chmod(folder, 0o700)
        shutil.rmtree(self.home)

    def start(self, *arguments, **options):
        """The program, running; standard output and error are pipes of bytes."""
        return subprocess.Popen(
            [BINARY, *arguments],
            env=self.environment,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def run_cli(self, *arguments, stdin=None, status=0):
        """(stdout, stderr) of a run that must end with `status`."""
        done = subprocess.run(
            [BINARY, *arguments],
            env=self.environment,
            input=stdin.encode() if isinstance(stdin, str) else stdin or b"",
            capture_output=True,
            timeout=TIMEOUT_S,
        )
        output, errors = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, status, f"{arguments}\n{output[-2000:]}\n{errors[-2000:]}")
        return output, errors

    def json_of(self, *arguments, stdin=None, status=0):
        """The one JSON object that a run with --json prints."""
        output, _ = self.run_cli(*arguments, "--json", stdin=stdin, status=status)
        return json.loads(output)

    def error_of(self, *arguments, stdin=None, status=1):
        """What a failing run says; checks that --json carries the same."""
        output, errors = self.run_cli(*arguments, stdin=stdin, status=status)
        self.assertEqual(output, "")
        self.assertIn("inferscale: ", errors)
        as_json = self.json_of(*arguments, stdin=stdin, status=status)
        self.assertEqual(set(as_json), {"error"})
        self.assertEqual(set(as_json["error"]), {"code", "message"})
        return as_json["error"]

    def add(self, *texts, **fields):
        """Stores texts without computing KV. Returns their facts."""
        options = [part for key, value in fields.items() for part in (f"--{key}", value)]
        return self.json_of("add", *texts, "--no-wait", *options)["facts"]

    def texts(self, user="me"):
        listed = self.json_of("list", "--limit", "100000", "--user", user)
        return [fact["memory"] for fact in listed["results"]]

    def kv_files(self):
        return sorted((self.data / "kv").rglob("*.kvb"))

    def wait_for(self, condition, process, seconds=TIMEOUT_S):
        """Polls until `condition()`; fails when the process ends first."""
        end = time.monotonic() + seconds
        while not condition():
            self.assertIsNone(process.poll(), "the program ended too early")
            self.assertLess(time.monotonic(), end, "the program takes too long")
            time.sleep(0.02)


class FakeServer(http.server.ThreadingHTTPServer):
    """OpenAI-compatible, for tests of thousands of texts: vectors are hashes, and an answer is what
    `complete(messages)` returns."""

    daemon_threads = True

    def __init__(self, test, complete=None):
        super().__init__(("127.0.0.1", 0), FakeServerHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        test.addCleanup(self.server_close)
        test.addCleanup(self.shutdown)
        self.complete = complete
        self.requests = []
        url = f"http://127.0.0.1:{self.server_port}/v1"
        test.environment["INFERSCALE_EMBEDDER"] = url
        test.environment["INFERSCALE_EMBEDDER_MODEL"] = "fake"
        if complete:
            test.environment["INFERSCALE_EXTRACTOR_URL"] = url
            test.environment["INFERSCALE_EXTRACTOR_MODEL"] = "fake"

    def handle_error(self, request, client_address):
        """A killed program leaves its connection: nothing to report."""


class FakeServerHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers)))
        if self.path.endswith("/embeddings"):
            digests = [hashlib.sha256(text.encode()).digest() for text in request["input"]]
            answer = {"data": [{"index": i, "embedding": [byte - 127.5 for byte in digest]}
                               for i, digest in enumerate(digests)]}
        else:
            text = self.server.complete(request["messages"])
            answer = {"choices": [{"index": 0, "finish_reason": "stop",
                                   "message": {"role": "assistant", "content": text}}]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def write_turns(path, count):
    """A plain-text conversation of distinct turns."""
    lines = [f"Anna: On trip number {i} I bought a small blue vase in town {i * 7}." for i in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [line.removeprefix("Anna: ") for line in lines]


def main():
    # A test run must not inherit a SIGINT that its parent ignores.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
