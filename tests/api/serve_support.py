"""A running `inferscale serve` on a free port, and plain HTTP to talk to it."""

import http.client
import json
import signal
import subprocess
import threading

import cli_support
from cli_support import CliTest

main = cli_support.main


class Server:
    """The program serving; `url` is where. Stopped by SIGTERM at the test's end."""

    def __init__(self, test, *arguments, **environment):
        self.environment = {**test.environment, "INFERSCALE_LISTEN": "127.0.0.1:0", **environment}
        self.process = subprocess.Popen(
            [cli_support.BINARY, "serve", "--json", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(timeout=cli_support.TIMEOUT_S)
            self._reader.join()
            raise AssertionError("serve did not start: " + "".join(self.log))
        self.ready = json.loads(line)
        self.url = self.ready["listening"]
        self.port = self.ready["port"]

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.decode())

    def stop(self, number=signal.SIGTERM):
        """Ends it and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=cli_support.TIMEOUT_S)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request; a dict or list is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                timeout=cli_support.TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def json(self, method, path, body=None, headers=None, status=200):
        """The JSON answer of a request that must end with `status`."""
        found, _, text = self.request(method, path, body, headers)
        if found != status:
            raise AssertionError(f"{method} {path}: {found}, not {status}: {text.decode()}")
        return json.loads(text)


class ServeTest(CliTest):
    """One server for all tests of a class."""

    ARGUMENTS = ()
    ENVIRONMENT = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        holder = cls("run_nothing")
        CliTest.setUp(holder)
        cls._holder = holder
        try:
            cls.server = Server(holder, *cls.ARGUMENTS, **cls.ENVIRONMENT)
        except BaseException:
            holder.doCleanups()
            raise

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls._holder.doCleanups()
        if status != 0:
            raise AssertionError(f"serve ended with {status}: " + "".join(cls.server.log[-20:]))
        super().tearDownClass()

    def run_nothing(self):
        """Names a test object that only holds the class's folder."""

    def setUp(self):
        self.home = self._holder.home
        self.data = self._holder.data
        self.environment = self._holder.environment
