#!/usr/bin/env python3
"""Measures the running service from outside: many clients, a large erasure, idle streams, the time
until it is ready. Standard library only; prints one table and writes service_load.json.

  service_load.py BINARY --model MODEL.gguf [--only mixed|erase|streams|ready] [--seconds 60]

Claims: 64 clients (chat, add, search, delete) get no error but 429 or 503 with Retry-After, lose no
acknowledged write, and leave memory flat; one DELETE by user takes 10,000 memories in 5 s and nobody
else's; /healthz answers in 50 ms beside 500 idle and 64 active streams; ready in 5 s with the
default models.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

CLIENTS = 64
IDLE = 500
MEMORIES = 10_000
OTHERS = 1_000
FILLING = 3_000
WORDS = "tea train canal piano harbour lemon window garden ticket mountain violin bridge".split()


class Program:
    """The service on a free port and a folder of its own."""

    def __init__(self, arguments, **options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="inferscale-load-"))
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"],
                       "INFERSCALE_DATA_DIR": str(self.folder), "INFERSCALE_LISTEN": "127.0.0.1:0",
                       "INFERSCALE_LOG_LEVEL": "warn", "INFERSCALE_THREADS": "1",
                       **options}
        for name in ("INFERSCALE_CACHE_DIR",):
            if name in os.environ:
                environment[name] = os.environ[name]
        start = time.monotonic()
        self.log = open(self.folder / "log", "wb")
        self.process = subprocess.Popen([arguments.binary, "serve", "--json"], env=environment,
                                        stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline()
        self.seconds_to_ready = time.monotonic() - start
        if not line:
            raise SystemExit("serve did not start: " + (self.folder / "log").read_text())
        self.port = json.loads(line)["port"]

    def rss_mib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.log.close()
        shutil.rmtree(self.folder)
        if status != 0:
            raise SystemExit(f"serve ended with {status}")


class Connection:
    """HTTP/1.1 on one connection that stays open."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def call(self, method, path, body=None, on_piece=None):
        """(status, headers, body); `on_piece` is called with each piece of a stream."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n"
        if body is not None:
            head += "Content-Type: application/json\r\n"
        self.writer.write(head.encode() + b"\r\n" + payload)
        await self.writer.drain()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value for name, value in
                   (line.split(": ", 1) for line in lines[1:] if line)}
        if "content-length" in headers:
            text = await self.reader.readexactly(int(headers["content-length"]))
        else:
            text = b""
            while size := int(await self.reader.readline(), 16):
                piece = await self.reader.readexactly(size + 2)
                text += piece[:-2]
                if on_piece:
                    on_piece(piece[:-2])
            await self.reader.readline()
        if headers.get("connection") == "close":
            self.close()
        return status, headers, text

    async def json(self, method, path, body=None):
        status, _, text = await self.call(method, path, body)
        if status != 200:
            raise SystemExit(f"{method} {path}: {status} {text[:500]}")
        return json.loads(text)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def listed(connection, user):
    memories, page = {}, 1
    while True:
        answer = await connection.json("POST", f"/v3/memories/?page={page}&page_size=1000",
                                       {"filters": {"user_id": user}})
        memories.update((item["id"], item["memory"]) for item in answer["results"])
        if answer["next"] is None:
            return memories
        page += 1


async def pending(connection):
    _, _, text = await connection.call("GET", "/metrics")
    return sum(int(count) for count in re.findall(rb"inferscale_pending\{[^}]*\} (\d+)", text))


async def settled(connection):
    while await pending(connection):
        await asyncio.sleep(0.2)


async def fill_caches(port):
    """A database larger than SQLite's page caches, read by as many connections as there are: what
    memory then gains is no cache."""
    connection = Connection(port)
    for first in range(0, FILLING, 500):
        await connection.json("POST", "/v3/memories/add/", {
            "user_id": "filling", "infer": False, "metadata": {"filling": "x" * 8000},
            "messages": [{"role": "user", "content": f"filling {number}"}
                         for number in range(first, first + 500)]})
    connection.close()
    await settle_all(port)

    async def read():
        reader = Connection(port)
        await listed(reader, "filling")
        reader.close()

    for _ in range(4):
        await asyncio.gather(*(read() for _ in range(8)))


async def settle_all(port):
    connection = Connection(port)
    await settled(connection)
    connection.close()


class Mixed:
    """One of the clients: a user of its own."""

    def __init__(self, port, number, tally):
        self.connection = Connection(port)
        self.user = f"client{number}"
        self.random = random.Random(number)
        self.tally = tally
        self.kept, self.gone = {}, set()

    async def step(self):
        kind = self.random.choices(["chat", "add", "search", "delete"], [3, 3, 3, 1])[0]
        words = " ".join(self.random.choices(WORDS, k=6))
        if kind == "chat":
            request = ("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": words}], "user": self.user,
                "max_tokens": 8, "stream": self.random.random() < 0.5,
                "memory": {"remember": self.random.random() < 0.2}})
        elif kind == "add":
            request = ("POST", "/v3/memories/add/", {
                "messages": f"{words} {self.random.getrandbits(40)}", "user_id": self.user,
                "infer": False})
        elif kind == "search":
            request = ("POST", "/v3/memories/search/", {
                "query": words, "filters": {"user_id": self.user}})
        elif not self.kept:
            return
        else:
            target = self.random.choice(sorted(self.kept))
            request = ("DELETE", f"/v1/memories/{target}/", None)
        start = time.monotonic()
        try:
            status, headers, text = await self.connection.call(*request)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.connection.close()
            self.tally["errors"].append(f"{kind}: {error!r}")
            return
        self.tally["ms", kind].append((time.monotonic() - start) * 1000)
        self.tally["count"][kind, status] += 1
        if status in (429, 503):
            if "retry-after" not in headers:
                self.tally["errors"].append(f"{kind}: {status} without Retry-After")
            await asyncio.sleep(0.1)
        elif status != 200 or (b'"error"' in text and kind == "chat"):
            self.tally["errors"].append(f"{kind}: {status} {text[:200]!r}")
        elif kind == "add":
            row = json.loads(text)["results"][0]
            self.kept[row["id"]] = row["memory"]
        elif kind == "delete":
            del self.kept[target]
            self.gone.add(target)

    async def run(self, end):
        while time.monotonic() < end:
            await self.step()


async def measure_mixed(arguments, rows):
    program = Program(arguments, INFERSCALE_MODEL=arguments.model, INFERSCALE_CONTEXT_TOKENS="2048",
                      INFERSCALE_KV_HOST_BYTES=arguments.kv_host_bytes, INFERSCALE_EXTRACTION="verbatim")
    tally = collections.defaultdict(list, count=collections.Counter())
    await fill_caches(program.port)
    clients = [Mixed(program.port, number, tally) for number in range(CLIENTS)]
    start = time.monotonic()
    memory = {}

    async def sample():
        probe = Connection(program.port)
        for second in (*range(10, arguments.seconds, 50), arguments.seconds):
            await asyncio.sleep(max(0, start + second - time.monotonic()))
            _, _, text = await probe.call("GET", "/metrics")
            stored = re.search(rb'inferscale_kv_bytes\{tier="host"\} (\d+)', text)
            memory[second] = (program.rss_mib(), int(stored.group(1)) / 2**20)
        probe.close()

    sampler = asyncio.create_task(sample())
    await asyncio.gather(*(client.run(start + arguments.seconds) for client in clients))
    await sampler
    connection = Connection(program.port)
    await settled(connection)
    lost = brought_back = 0
    for client in clients:
        found = await listed(connection, client.user)
        lost += sum(found.get(key) != text for key, text in client.kept.items())
        brought_back += len(client.gone & set(found))
        client.connection.close()
    connection.close()
    for kind in ("chat", "add", "search", "delete"):
        times = tally["ms", kind]
        rows.append((f"{kind}: calls; median, p99 ms", f"{len(times)}; {statistics.median(times):.0f}, "
                     f"{statistics.quantiles(times, n=100)[98]:.0f}", ""))
    refused = sum(count for (_, status), count in tally["count"].items() if status in (429, 503))
    rows.append(("refused with 429 or 503 and Retry-After", refused, ""))
    rows.append(("other errors", len(tally["errors"]), "0"))
    rows.append(("acknowledged writes lost, or undone", lost + brought_back, "0"))
    for second, figures in memory.items():
        rows.append((f"resident memory after {second} s, MiB (of it KV)",
                     "{:.0f} ({:.1f})".format(*figures), "flat"))
    for error in tally["errors"][:5]:
        print("error:", error, file=sys.stderr)
    program.stop()


async def measure_erase(arguments, rows):
    program = Program(arguments, INFERSCALE_MODEL=arguments.model, INFERSCALE_CONTEXT_TOKENS="2048",
                      INFERSCALE_EXTRACTION="verbatim")
    connection = Connection(program.port)
    for user, count in (("large", MEMORIES), ("other", OTHERS)):
        for first in range(0, count, 500):
            await connection.json("POST", "/v3/memories/add/", {
                "user_id": user, "infer": False, "messages": [
                    {"role": "user", "content": f"{user} note {number} of {WORDS[number % 12]}"}
                    for number in range(first, first + 500)]})
    await settled(connection)
    other = await listed(connection, "other")
    blocks = len(list(program.folder.rglob("*.kvb")))
    start = time.monotonic()
    await connection.json("DELETE", "/v1/memories/?user_id=large")
    seconds = time.monotonic() - start
    left = await listed(connection, "large")
    rows.append((f"DELETE of {MEMORIES:,} memories, {blocks:,} KV files there, s", f"{seconds:.2f}",
                 "5"))
    rows.append(("memories left of that user", len(left), "0"))
    rows.append(("KV files left", len(list(program.folder.rglob("*.kvb"))), str(OTHERS)))
    rows.append(("another user's memories, changed",
                 sum(other[key] != text for key, text in (await listed(connection, "other")).items())
                 + abs(len(other) - OTHERS), "0"))
    connection.close()
    program.stop()


async def measure_streams(arguments, rows):
    program = Program(arguments, INFERSCALE_MODEL=arguments.model, INFERSCALE_CONTEXT_TOKENS="2048",
                      INFERSCALE_PARALLEL_SEQUENCES="4")
    idle = [Connection(program.port) for _ in range(IDLE)]
    for connection in idle:
        await connection.json("GET", "/healthz")
    pieces = collections.Counter()

    async def stream(number):
        connection = Connection(program.port)
        try:
            while True:
                await connection.call("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": f"Tell me story {number}"}],
                    "max_tokens": 200, "stream": True}, lambda piece: pieces.update([number]))
        finally:
            connection.close()

    streams = [asyncio.create_task(stream(number)) for number in range(CLIENTS)]
    await asyncio.sleep(3)
    probe, times = Connection(program.port), []
    for _ in range(200):
        start = time.monotonic()
        await probe.json("GET", "/healthz")
        times.append((time.monotonic() - start) * 1000)
        await asyncio.sleep(0.02)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    for connection in [*idle, probe]:
        connection.close()
    times.sort()
    rows.append((f"/healthz beside {IDLE} idle and {CLIENTS} active streams, ms: median, p99, most",
                 f"{statistics.median(times):.1f}, {times[197]:.1f}, {times[-1]:.1f}", "50"))
    rows.append(("streams that have got tokens", len(pieces), str(CLIENTS)))
    program.stop()


async def measure_ready(arguments, rows):
    times = []
    for _ in range(5):
        program = Program(arguments)
        times.append(program.seconds_to_ready)
        program.stop()
    rows.append(("start until ready, default models, s: median, most of 5",
                 f"{statistics.median(times):.2f}, {max(times):.2f}", "5"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--model", required=True, help="GGUF file for all but ready")
    parser.add_argument("--only", choices=["mixed", "erase", "streams", "ready"])
    parser.add_argument("--kv-host-bytes", default="4M", help="small: full before memory is looked at")
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for name in ("ready", "streams", "erase", "mixed"):
        if arguments.only in (None, name):
            asyncio.run(globals()["measure_" + name](arguments, rows))
    print(f"{'what':<72} {'value':>40}  bound")
    for what, value, bound in rows:
        print(f"{what:<72} {value!s:>40}  {bound}")
    with open("service_load.json", "w") as file:
        json.dump([{"what": what, "value": value, "bound": bound} for what, value, bound in rows],
                  file, indent=1)


if __name__ == "__main__":
    main()
