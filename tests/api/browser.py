"""A headless Chromium, driven by the DevTools protocol over a pipe: no driver, no port."""

import base64
import json
import os
import pathlib
import queue
import shutil
import subprocess
import tempfile
import threading
import time

TIMEOUT_S = 60
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}


def find():
    """The path of a Chromium; None where there is none."""
    for name in ["chromium", "chromium-browser", "google-chrome"]:
        if path := shutil.which(name):
            return path
    return None


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="inferscale-chromium-")
        child_reads, self._write = os.pipe()
        self._read, child_writes = os.pipe()
        # The protocol's two ends are descriptors 3 and 4.
        move_pipes = 'exec {r}<&"$1" {w}>&"$2"; exec 3<&"$r" 4>&"$w"; shift 2; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", move_pipes, "bash", str(child_reads), str(child_writes),
             find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--disable-background-networking",
             "--disable-component-update", "--lang=en-GB", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(child_reads, child_writes), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder})
        os.close(child_reads)
        os.close(child_writes)
        self._next = 0
        self._answers = {}
        self._lock = threading.Lock()
        self.listeners = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        waiting = b""
        while chunk := os.read(self._read, 1 << 16):
            *messages, waiting = (waiting + chunk).split(b"\0")
            for text in messages:
                message = json.loads(text)
                if "id" in message:
                    self._answers[message["id"]].put(message)
                elif listener := self.listeners.get(message.get("sessionId")):
                    listener(message["method"], message["params"])

    def send(self, method, parameters=None, session=None):
        """Sends a command and returns where its answer will be."""
        with self._lock:
            self._next += 1
            number = self._next
            answer = self._answers[number] = queue.Queue()
            message = {"id": number, "method": method, "params": parameters or {}}
            if session:
                message["sessionId"] = session
            os.write(self._write, json.dumps(message).encode() + b"\0")
        return answer

    def call(self, method, parameters=None, session=None):
        message = self.send(method, parameters, session).get(timeout=TIMEOUT_S)
        if "error" in message:
            raise AssertionError(f"{method}: {message['error']['message']}")
        return message["result"]

    def close(self):
        try:
            self.send("Browser.close")
            self.process.wait(timeout=TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self._write)
        shutil.rmtree(self.folder, ignore_errors=True)


class Page:
    """A window of its own, with nothing kept from others. `errors` are what its console shows as
    errors; `requests` the addresses it asked for."""

    def __init__(self, browser, width=1280, height=800, dark=False):
        self.browser = browser
        self.errors, self.requests, self._faults = [], [], []
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget",
                              {"url": "about:blank", "browserContextId": context})["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget",
                                    {"targetId": target, "flatten": True})["sessionId"]
        browser.listeners[self.session] = self._on_event
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")
        self.look(width, height, dark)

    def call(self, method, parameters=None):
        return self.browser.call(method, parameters, self.session)

    def look(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def _on_event(self, method, event):
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.errors.append(str([argument.get("value") for argument in event["args"]]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(event["entry"]["text"] + " " + event["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Fetch.requestPaused":
            self._on_paused(event)

    def _on_paused(self, event):
        request = {"requestId": event["requestId"]}
        if self._faults:
            status, headers, body = self._faults.pop(0)
            self.browser.send("Fetch.fulfillRequest", {
                **request, "responseCode": status,
                "responseHeaders": [{"name": name, "value": value} for name, value in headers],
                "body": base64.b64encode(body.encode()).decode()}, self.session)
        else:
            self.browser.send("Fetch.continueRequest", request, self.session)

    def answer_next(self, pattern, status, headers=(), body="{}"):
        """The next request to an address like `pattern` gets this answer instead of the server's."""
        self._faults.append((status, list(headers), body))
        self.call("Fetch.enable", {"patterns": [{"urlPattern": pattern}]})

    def open(self, url):
        self.call("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """The value of a JavaScript expression; awaited if it is a promise."""
        result = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True,
                                                "awaitPromise": True})
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, condition, seconds=TIMEOUT_S):
        """Polls until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while True:
            try:
                if self.run(f"Boolean({condition})"):
                    return
            except AssertionError as error:  # the page is being replaced
                if time.monotonic() > end:
                    raise error
            if time.monotonic() > end:
                text = self.run("document.body.innerText")
                raise AssertionError(f"never true: {condition}\n{text}\n{self.errors}")
            time.sleep(0.03)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? null")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                        ".map((element) => element.textContent)")

    def wait_text(self, selector, words):
        self.wait(f"document.querySelector({json.dumps(selector)})?.textContent"
                  f".includes({json.dumps(words)})")

    def click(self, selector, number=0):
        """A real click in the middle of an element, which must not be covered by another."""
        place = self.run(f"""(() => {{
            const element = document.querySelectorAll({json.dumps(selector)})[{number}];
            if (!element) return "there is none";
            element.scrollIntoView({{block: "nearest"}});
            const box = element.getBoundingClientRect();
            const x = box.x + box.width / 2, y = box.y + box.height / 2;
            const top = document.elementFromPoint(x, y);
            if (!top || !(element.contains(top) || element.labels || top.contains(element)))
              return "it is covered by " + (top?.outerHTML.slice(0, 80));
            return {{x, y}};
        }})()""")
        if isinstance(place, str):
            raise AssertionError(f"cannot click {selector}: {place}")
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent",
                      {"type": kind, **place, "button": "left", "clickCount": 1})

    def type(self, text):
        self.call("Input.insertText", {"text": text})

    def key(self, name, shift=False):
        event = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name],
                 "modifiers": 8 if shift else 0}
        if name == "Enter":
            event["text"] = "\r"
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        event.pop("text", None)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def fill(self, selector, text):
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.type(text)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", {"format": "png"})["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        self.browser.listeners.pop(self.session, None)
        self.browser.call("Target.closeTarget", {"targetId": self.target})
