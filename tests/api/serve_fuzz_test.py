#!/usr/bin/env python3
"""Every route of /openapi.json with requests made from its schemas and then damaged: no answer but
those that the document lists, no 500, and the server is as well afterwards as before."""

import copy
import http.client
import json
import random
import threading
import urllib.parse

import cli_support
import serve_support
from serve_support import ServeTest

SEED = 20261130
CASES = 40  # a route
REFUSED_CASES = 4  # of what is not part of the server
THREADS = 4
OWNER = "alice"

STRINGS = [
    "", " ", "a", "alice", "*", "default", "null", "0", "-1", "true", "2026-11-30",
    "2026-11-30T25:00:00Z", "0000-00-00", "'", "''; DROP TABLE facts; --", "\" OR \"\"=\"",
    "1; ATTACH DATABASE '/tmp/x' AS y", "x' UNION SELECT value FROM meta --", "%", "_", "a\\",
    "NEAR(a b)", "text:a*", "^", "a AND", "{}", "[1]", "{'user_id': 'a'}", "<script>alert(1)</script>",
    "../../etc/passwd", "..", ".", "a/b", "a%2Fb", "%00", "\0", "a\0b", "\x01\x02\x1b[31m", "\r\nX-Evil: 1",
    "\u202e\u200b\ufeff", "\ud800", "\udfff\ud800", "\U0001f600" * 70, "é" * 128 + "x", "e\u0301",
    "İ", "x" * 257, "y" * 5000, "<|im_start|>system", "</s>", "🌊 東京 مرحبا", "\t\n",
]
NUMBERS = [0, 1, -1, 2, 16, 17, 1000, 1001, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63,
           2**64, -2**63, -2**63 - 1, 10**400, 0.5, -0.0, 1e-300, 1e308, 1.7976931348623157e308]
VALUES = [None, True, False, [], {}, [[]], [{}], [None], {"": ""}, {"a": {"b": {"c": 1}}},
          {"AND": []}, {"OR": [{}]}, {"NOT": {"user_id": "a"}}, {"user_id": "*"},
          {"user_id": {"in": ["a", None]}}, {"created_at": {"gte": "x"}}, {"x": {"gt": [1]}}]
RAW = [
    b"", b" ", b"null", b"[]", b"1", b'"text"', b"{", b'{"a":', b"{}{}", b"{},", b"{'a':1}",
    b"\xff", b'{"\xff":1}', b'{"query":"\xc3\x28","user_id":"a","messages":"\xed\xa0\x80"}',
    b'{"user_id":NaN}', b'{"top_k":Infinity}', b'{"threshold":1e999}', b'{"top_k":-1e999}',
    b'{"query":"\\ud800","messages":"\\ud800","text":"\\ud800","prompt":"\\udc00","user_id":"a"}',
    b'{"query":"\\u0000","messages":"\\u0000","text":"\\u0000","prompt":"\\u0000","input":"\\u0000",'
    b'"user_id":"\\u0000"}',
    b'{"user_id":"a","user_id":"b"}', b'\xef\xbb\xbf{}', '{"a":1}'.encode("utf-16"),
    '{"a":1}'.encode("utf-32"), b'{"a":"\x00"}', b"{}\x00", b"{" * 1000, b"[" * 200_000,
    b'{"a":' * 63 + b"1" + b"}" * 63, b'{"a":' * 65 + b"1" + b"}" * 65,
    b'{"filters":' + b'{"NOT":' * 50 + b'{"user_id":"a"}' + b"}" * 51,
    b'{"filters":{"AND":[' + b'{"user_id":"a"},' * 5000 + b'{"user_id":"a"}]}}',
    b'{"messages":[' + b'{"role":"user","content":"x"},' * 5000 + b'{}],"user_id":"a"}',
    b'{"a":"' + b"x" * 1_000_000 + b'"}', b'{"top_k":' + b"9" * 400 + b"}",
    b'{"metadata":{' + b",".join(b'"k%d":%d' % (i, i) for i in range(5000)) + b'},"user_id":"a"}',
    b"user_id=a&messages=x", b"--x\r\nContent-Disposition: form-data\r\n\r\n--x--",
]
CONTENT_TYPES = ["application/json", "application/json; charset=utf-8", "application/json;charset=latin-1",
                 "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                 "application/merge-patch+json", "", "x" * 300]
HEADERS = ["X-Inferscale-User", "X-Inferscale-Run", "X-API-Key", "Authorization", "X-Request-ID",
           "Accept", "X-Forwarded-Proto", "X-Forwarded-For", "Accept-Encoding", "Cookie", "Range",
           "If-None-Match", "Content-Encoding"]
MAY_FAIL = (501, 502, 503)  # where the document says so


class Maker:
    """Values from a schema, and what nobody would send."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, schema):
        choice = self.random
        if "oneOf" in schema:
            return self.of(choice.choice(schema["oneOf"]))
        if "enum" in schema:
            return choice.choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = choice.choice(kind)
        if kind == "object":
            fields = schema.get("properties", {})
            chance = min(0.4, 2.5 / max(len(fields), 1))  # few enough that most bodies make sense
            return {name: self.of(each) for name, each in fields.items()
                    if name in schema.get("required", []) or choice.random() < chance}
        if kind == "array":
            least = schema.get("minItems", 0)
            return [self.of(schema.get("items", {"type": "string"}))
                    for _ in range(choice.randint(least, least + 2))]
        if kind == "integer":
            least = schema.get("minimum", -5)
            return choice.randint(least, min(schema.get("maximum", 100), least + 20))
        if kind == "number":
            return choice.uniform(schema.get("minimum", 0), schema.get("maximum", 1))
        if kind == "boolean":
            return choice.random() < 0.5
        if kind == "null":
            return None
        if schema.get("format") == "date":
            return choice.choice(["2026-11-30", "2999-01-01", "2026-11-30T08:00:00+05:30"])
        return choice.choice(["alice", "tea", "Where does Anna live?", "2026-11-30", "x"])

    def anything(self):
        return copy.deepcopy(self.random.choice([*STRINGS, *NUMBERS, *VALUES]))

    def damaged(self, value):
        """One place in it is something else, missing, or more."""
        if isinstance(value, dict) and value and self.random.random() < 0.9:
            value = dict(value)
            name = self.random.choice(sorted(value))
            turn = self.random.random()
            if turn < 0.15:
                del value[name]
            elif turn < 0.25:
                value[self.random.choice(STRINGS)] = self.anything()
            else:
                value[name] = self.damaged(value[name])
            return value
        if isinstance(value, list) and value and self.random.random() < 0.7:
            value = list(value)
            value[self.random.randrange(len(value))] = self.damaged(value[0])
            return value
        return self.anything()


def quoted(text):
    return urllib.parse.quote(text.encode("utf-8", "surrogatepass"), safe="")


class Fuzz(ServeTest):
    def operations(self):
        document = self.server.json("GET", "/openapi.json")
        return [(method, path, operation) for path, methods in sorted(document["paths"].items())
                for method, operation in sorted(methods.items())]

    def target(self, maker, path, operation, known):
        choice = maker.random
        parts = []
        for part in path.split("/"):
            if part.startswith("{"):
                odd = [*map(quoted, STRINGS), "%ff", "%c3%28", "%zz", "%", "%2e%2e", "a;b", "x" * 9000]
                part = (known.get(part[1:-1], "x") if choice.random() < 0.7 else choice.choice(odd))
            parts.append(part)
        query = [(each["name"], known.get(each["name"]) or maker.of(each["schema"]))
                 for each in operation.get("parameters", []) if each["in"] == "query"
                 if choice.random() < 0.4]
        if choice.random() < 0.1:
            query.append((choice.choice(STRINGS + ["filters", "page", "user_id"]), maker.anything()))
        if query and choice.random() < 0.3:
            spoilt = choice.randrange(len(query))
            query[spoilt] = (query[spoilt][0], choice.choice(STRINGS))
        text = "&".join(
            quoted(name) + "=" + quoted(value if isinstance(value, str) else json.dumps(value))
            for name, value in query)
        if choice.random() < 0.05:
            text += choice.choice(["&", "&&=", "=%", "%zz=1", "a=%ff", "?", "filters=%7B", "a=1&a=2"])
        return "/".join(parts) + choice.choice(["", "/"]) + ("?" + text if text else "")

    def request_of(self, maker, path, operation, known):
        """(target, headers, body) of one request."""
        choice = maker.random
        headers, body = {}, None
        schema = (operation.get("requestBody", {}).get("content", {})
                  .get("application/json", {}).get("schema"))
        if schema is not None:
            headers["Content-Type"] = "application/json"
            value = maker.of(schema)
            fields = schema.get("properties", {})
            for name in set(known) & set(fields):
                value[name] = known[name]
            for item in value.get("memories", []):
                item["memory_id"] = known["memory_id"]
            if "max_tokens" in fields:  # a fuzz of what is asked, not of patience
                value.update(max_tokens=2, n=min(value.get("n", 1), 2))
            if "memory" in value:
                value["memory"].pop("filters", None)
                value["memory"].pop("recipe", None)
            turn = choice.random()
            if 0.4 < turn < 0.85:
                value = maker.damaged(value)
            body = choice.choice(RAW) if turn >= 0.85 else json.dumps(value).encode()
            if choice.random() < 0.05:
                headers["Content-Type"] = choice.choice(CONTENT_TYPES)
        elif choice.random() < 0.1:
            headers["Content-Type"] = "application/json"
            body = choice.choice(RAW)
        if choice.random() < 0.1:
            value = choice.choice(STRINGS).encode("utf-8", "surrogatepass")
            if not set(value) & set(b"\r\n\0"):
                headers[choice.choice(HEADERS)] = value
        return self.target(maker, path, operation, known), headers, body

    def check(self, operation, request, status, content_type, text):
        shown = f"{request[:2]} {(request[2] or b'')[:300]!r}: {status} {text[:500]!r}"
        answers = operation["responses"]
        listed = answers.get(str(status)) or answers.get(f"{status // 100}XX")
        if listed is None:
            # Refused before the route was found: a path that another route has, or that none has.
            self.assertIn(status, (403, 404, 405), shown)
            types = {"application/json"}
        else:
            types = set(listed["content"])
        self.assertTrue(status < 500 or status in MAY_FAIL, shown)
        if status in (202, 204) and not text:
            return
        kind = content_type.split(";")[0]
        self.assertIn(kind, types, shown)
        if kind == "application/json":
            json.loads(text.decode("utf-8"), parse_constant=lambda name: self.fail(name + " in " + shown))
        elif kind == "text/event-stream":
            self.assertTrue(text.endswith(b"data: [DONE]\n\n"), shown)

    def send(self, method, target, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port,
                                                timeout=cli_support.TIMEOUT_S)
        try:
            connection.request(method.upper(), target, body, headers)
            response = connection.getresponse()
            return response.status, response.headers.get("Content-Type", ""), response.read()
        finally:
            connection.close()

    def attack(self, method, path, operation):
        maker = Maker(f"{SEED} {method} {path}")
        owner = OWNER + "".join(c for c in method + path if c.isalnum())
        cases = CASES if "2XX" in operation["responses"] else REFUSED_CASES
        changes = method != "get" and ("memory_id" in path or "batch" in path)
        for number in range(cases):
            if number == 0 or changes:
                added = self.server.json("POST", "/v3/memories/add", {
                    "messages": f"tea number {number}", "user_id": owner, "infer": False})
            known = {"memory_id": added["results"][0]["id"], "event_id": added["event_id"],
                     "type": "user", "entity_id": owner, "user_id": owner, "model": "llama_norm",
                     "filters": {"user_id": owner}}
            request = self.request_of(maker, path, operation, known)
            self.check(operation, (f"{method} {request[0]}", *request[1:]),
                       *self.send(method, *request))

    def test_no_request_makes_the_server_fail(self):
        operations = self.operations()
        faults = []

        def work(mine):
            for operation in mine:
                try:
                    self.attack(*operation)
                except Exception as fault:  # reported by the test's own thread
                    faults.append(fault)

        # What deletes everything goes last, by itself.
        last = [each for each in operations if each[1] == "/reset"]
        rest = [each for each in operations if each not in last]
        workers = [threading.Thread(target=work, args=(rest[first::THREADS],))
                   for first in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        work(last)
        self.assertEqual([str(fault) for fault in faults], [])
        self.assertIsNone(self.server.process.poll())
        for path in ["/healthz", "/readyz"]:
            self.server.json("GET", path)
        added = self.server.json("POST", "/memories", {
            "messages": "alive", "user_id": "afterwards", "infer": False})
        self.assertEqual(added["results"][0]["memory"], "alive")
        for line in list(self.server.log):
            self.assertNotEqual(json.loads(line)["level"], "error", line)

    def test_the_document_describes_every_route(self):
        for method, path, operation in self.operations():
            with self.subTest(f"{method} {path}"):
                self.assertTrue(operation.get("summary"))
                self.assertIn("4XX", operation["responses"])
                self.assertIn("503", operation["responses"])


if __name__ == "__main__":
    serve_support.main()
