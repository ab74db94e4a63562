"""The gateway in front of vLLM's API server, each a process of its own: what the tests of the whole
way start, ask and end."""

import functools
import http.server
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from conftest import ROOT

from inferscale.vllm.control import ControlClient

BINARY = pathlib.Path(os.environ.get("INFERSCALE_BINARY_PATH", ROOT / "build/release/inferscale"))
PATIENCE_S = 180


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Process:
    """A program in a group of its own, so that what it starts goes with it."""

    def __init__(self, command: list, log: pathlib.Path, environment: dict) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                            env=os.environ | environment, start_new_session=True)

    def end(self, number: int = signal.SIGTERM) -> None:
        try:
            os.killpg(self.process.pid, number)
            self.process.wait(30)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def check(self) -> None:
        if self.process.poll() is not None:
            pytest.fail(f"ended with {self.process.returncode}:\n{self.log.read_text()[-4000:]}")


@functools.cache
def trusting_in(ca: pathlib.Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def request(url: str, body=None, method: str | None = None, key: str = "", timeout: float = 120,
            ca: pathlib.Path | None = None, rank: str | None = None):
    """(status, answer). `ca`: of an https URL; `rank`: data-parallel."""
    headers = {"content-type": "application/json"}
    if rank:
        headers["x-data-parallel-rank"] = rank
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    wanted = urllib.request.Request(url, data, headers, method=method)
    try:
        trusting = trusting_in(ca) if ca else None
        with urllib.request.urlopen(wanted, timeout=timeout, context=trusting) as answer:
            text = answer.read().decode()
            status = answer.status
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text) if text else None
    except ValueError:
        return status, text


def sign_certificate(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """A certificate authority of one's own, and what it has signed for 127.0.0.1."""
    made = {name: folder / f"{name}.pem" for name in ("ca", "ca_key", "key", "certificate")}
    asked = folder / "asked.pem"
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
            ["req", "-x509", *new_key, "-keyout", made["ca_key"], "-out", made["ca"],
             "-subj", "/CN=test authority", "-days", "2"],
            ["req", *new_key, "-keyout", made["key"], "-out", asked, "-subj", "/CN=vllm"],
            ["x509", "-req", "-in", asked, "-CA", made["ca"], "-CAkey", made["ca_key"],
             "-CAcreateserial", "-out", made["certificate"], "-days", "2",
             "-extfile", folder / "extensions"]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return made


class Pair:
    """A server of vLLM, the gateways in front of it, and what they share."""

    def __init__(self, folder: pathlib.Path, model: str, tls: bool = False,
                 options: tuple[str, ...] = (), connector: dict | None = None) -> None:
        self.folder, self.model, self.options = folder, model, options
        self.connector = connector or {}  # settings beside the usual ones
        self.secret = os.urandom(24).hex()
        self.key = "key-" + os.urandom(8).hex()
        (folder / "secret").write_text(self.secret + "\n")
        (folder / "secret").chmod(0o600)
        self.certificate = sign_certificate(folder) if tls else None
        self.ca = self.certificate["ca"] if tls else None
        self.vllm_url = f"http{'s' if tls else ''}://127.0.0.1:{free_port()}"
        self.socket = str(folder / "socket")
        self.gateways = []
        self.vllm = None

    def start_vllm(self, *options: str, **environment: str) -> None:
        extra = {"secret_file": str(self.folder / "secret"), "codec": "f32", "host_bytes": "256M",
                 "folder": str(self.folder / "kv"), "control_socket": self.socket, **self.connector}
        transfer = {"kv_connector": "InferScaleConnector",
                    "kv_connector_module_path": "inferscale.vllm", "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model,
                   "--served-model-name", "smol", "--dtype", "float32", "--enforce-eager",
                   "--max-model-len", "2048", "--max-num-seqs", "4",
                   "--max-num-batched-tokens", "1024", "--block-size", "32", "--host", "127.0.0.1",
                   "--port", self.vllm_url.rsplit(":", 1)[1], "--api-key", self.key,
                   "--kv-transfer-config", json.dumps(transfer), *self.options, *options]
        if self.certificate:
            command += ["--ssl-keyfile", str(self.certificate["key"]),
                        "--ssl-certfile", str(self.certificate["certificate"])]
        paths = os.pathsep.join(path for path in sys.path if path)
        self.vllm = Process(command, self.folder / "vllm.log",
                            {"PYTHONPATH": paths, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
                            | environment)
        self.until(lambda: request(self.vllm_url + "/health", ca=self.ca)[0] == 200)

    def until(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self.vllm is not None:
                self.vllm.check()
            try:
                if condition():
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, (self.folder / "vllm.log").read_text()[-4000:]
            time.sleep(0.2)

    def flags(self) -> list:
        trusting = ["--vllm-ca-file", str(self.ca)] if self.ca else []
        return ["--engine", "vllm", "--vllm-url", self.vllm_url, "--vllm-control", self.socket,
                "--vllm-secret-file", str(self.folder / "secret"), *trusting]

    def environment(self) -> dict:
        return {"INFERSCALE_VLLM_KEY": self.key, "OMP_NUM_THREADS": "2",
                "INFERSCALE_ACCURACY_GATE": "ignore", "INFERSCALE_RECIPE": "primer:3"}

    def start_gateway(self, name: str, flags: list) -> str:
        """Its URL."""
        port = free_port()
        command = [str(BINARY), "serve", "--listen", f"127.0.0.1:{port}",
                   "--data-dir", str(self.folder / name), *flags]
        gateway = Process(command, self.folder / f"{name}.log", self.environment())
        self.gateways.append(gateway)
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            gateway.check()
            return request(url + "/healthz")[0] < 500

        self.until(answers)
        return url

    def control(self, operation: str, rank: int = 0, **fields):
        path = self.socket + (f"-{rank}" if rank else "")
        with ControlClient(path, self.secret.encode()) as client:
            return client.call(operation, **fields)

    def files(self, rank: int | None = None) -> set:
        """Of one data-parallel rank, or of all of them."""
        folder = self.folder / "kv"
        if rank is not None:
            folder /= "rank-0" + (f"-{rank}" if rank else "")
        return {path.name for path in folder.rglob("*.kvb")}

    def end(self) -> None:
        for gateway in self.gateways:
            gateway.end()
        if self.vllm is not None:
            self.vllm.end()


class Between:
    """Stands in front of a pair's server and takes the transfer parameters out of streamed requests:
    an engine that injects nothing."""

    def __init__(self, pair: Pair) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def pass_on(self) -> None:
                text = self.rfile.read(int(self.headers.get("content-length") or 0))
                body = json.loads(text) if text else None
                if body and body.get("stream"):
                    body.pop("kv_transfer_params", None)
                status, answer = request(pair.vllm_url + self.path, body, self.command, pair.key,
                                         ca=pair.ca,
                                         rank=self.headers.get("x-data-parallel-rank"))
                out = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(out)))
                self.end_headers()
                self.wfile.write(out)

            do_GET = do_POST = pass_on

            def log_message(self, *_) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Between":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()


class Gateway:
    def __init__(self, pair: Pair, url: str) -> None:
        self.pair, self.url = pair, url

    def add(self, facts: list, user: str):
        return request(self.url + "/v1/memories/", {
            "messages": [{"role": "user", "name": "Maya", "content": fact} for fact in facts], "user_id": user,
            "infer": False, "async_mode": False})

    def wait(self) -> None:
        """Until nothing is pending."""
        def idle() -> bool:
            text = request(self.url + "/metrics")[1]
            pending = [line for line in text.splitlines() if line.startswith("inferscale_pending")]
            return bool(pending) and all(float(line.split()[-1]) == 0 for line in pending)
        self.pair.until(idle)

    def chat(self, messages, user: str, **options):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return request(self.url + "/v1/chat/completions", {
            "model": "smol", "user": user, "messages": messages, "max_tokens": 10,
            "temperature": 0, "memory": {"remember": False}, **options})

    def memories(self, user: str) -> list:
        answer = request(f"{self.url}/v1/memories/?user_id={user}")[1]
        return answer["results"] if isinstance(answer, dict) else answer
