#!/usr/bin/env python3
"""The service as its operator sees it: readiness, figures, logs, API keys, tenants, its end."""

import http.client
import json
import re
import signal
import socket

import serve_support
from serve_support import CliTest, Server, ServeTest

QUESTION = {"messages": [{"role": "user", "content": "Where does Anna live?"}], "max_tokens": 2}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Operations(ServeTest):
    def test_health_and_readiness(self):
        self.assertEqual(self.server.json("GET", "/healthz")["status"], "ok")
        self.assertEqual(self.server.json("GET", "/readyz")["status"], "ready")

    def test_metrics_count_requests_and_tokens_without_naming_anybody(self):
        self.server.json("POST", "/v1/chat/completions", QUESTION)
        self.server.json("POST", "/v1/chat/completions", {**QUESTION, "user": "very-private"})
        status, headers, text = self.server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertIn("text/plain", headers["Content-Type"])
        text = text.decode()
        self.assertRegex(text, r'inferscale_http_requests_total\{method="POST",'
                               r'route="/v1/chat/completions",status="200"\} \d+\n')
        for family in ["inferscale_time_to_first_token_seconds_bucket",
                       'inferscale_prompt_tokens_total{source="injected"}',
                       'inferscale_prompt_tokens_total{source="computed"}',
                       'inferscale_fallbacks_total{reason="no_owner"}', 'inferscale_pending{work="encodings"}',
                       'inferscale_kv_bytes{tier="host"}', "inferscale_chats "]:
            self.assertIn(family, text)
        self.assertNotIn("private", text)
        for line in text.splitlines():
            self.assertRegex(line, r"^(# TYPE [a-z_]+ (counter|gauge|histogram)"
                                   r'|[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? \S+)$')
        types = re.findall(r"# TYPE (\S+)", text)
        self.assertEqual(len(types), len(set(types)))

    def test_unknown_methods_and_paths_are_one_label(self):
        for number in range(3):
            self.server.request(f"BREW{number}", f"/coffee/{number}")
        text = self.server.request("GET", "/metrics")[2].decode()
        self.assertNotIn("BREW", text)
        self.assertNotIn("coffee", text)

    def test_openapi_lists_every_route(self):
        document = self.server.json("GET", "/openapi.json")
        self.assertEqual(document["openapi"], "3.1.0")
        chat = document["paths"]["/v1/chat/completions"]["post"]
        schema = chat["requestBody"]["content"]["application/json"]["schema"]
        self.assertIn("messages", schema["properties"])
        for path, methods in document["paths"].items():
            for method in methods:
                if "{" in path or method != "get":
                    continue
                status = self.server.request(method.upper(), path)[0]
                self.assertTrue(status < 500 or status == 501, f"{path}: {status}")
        status, headers, page = self.server.request("GET", "/docs")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn(b"/v1/chat/completions", page)

    def test_paths_and_methods_that_are_not(self):
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)
        status, headers, _ = self.server.request("PUT", "/healthz")
        self.assertEqual(status, 405)
        self.assertEqual(headers["Allow"], "GET")
        self.assertEqual(self.server.request("HEAD", "/healthz")[0], 200)

    def test_foreign_hosts_and_origins_are_refused(self):
        port = self.server.port
        for host, status in [(f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200),
                             (f"[::1]:{port}", 200), ("evil.example", 403),
                             (f"localhost.evil.example:{port}", 403),
                             (f"127.0.0.1.evil.example:{port}", 403),
                             (f"[::1].evil.example:{port}", 403), ("evil.example:localhost", 403),
                             ("127.0.0.1:80@evil.example", 403), ("localhost@evil.example", 403),
                             ("evil.example.", 403), ("2130706433", 403), ("", 403),
                             ("LOCALHOST", 200), ("::1", 403)]:
            found = self.server.request("GET", "/healthz", headers={"Host": host})[0]
            self.assertEqual(found, status, host)
        for origin, status in [(f"http://127.0.0.1:{port}", 200), ("http://evil.example", 403),
                               ("null", 403), ("http://127.0.0.1:1", 403)]:
            found = self.server.request("POST", "/v1/chat/completions", QUESTION,
                                        {"Origin": origin})[0]
            self.assertEqual(found, status, origin)
        self.assertNotIn("Access-Control-Allow-Origin",
                         self.server.request("GET", "/healthz",
                                             headers={"Origin": "http://evil.example"})[1])

    def test_bodies_that_are_not_what_they_should_be(self):
        path = "/v1/chat/completions"
        whole = json.dumps(QUESTION)
        for body, headers in [
            (whole, {"Content-Type": "text/plain"}),
            (whole, {}),
            ("", {"Content-Type": "application/json"}),
            ("[]", {"Content-Type": "application/json"}),
            ("{", {"Content-Type": "application/json"}),
            (b"\xef\xbb\xbf" + whole.encode(), {"Content-Type": "application/json"}),
            (whole.encode("utf-16"), {"Content-Type": "application/json"}),
            (b'{"messages":[{"role":"user","content":"\xff"}]}',
             {"Content-Type": "application/json"}),
            ('{"a":' * 100 + "1" + "}" * 100, {"Content-Type": "application/json"}),
            ("[" * 100_000, {"Content-Type": "application/json"}),
        ]:
            with self.subTest(body[:30]):
                status, _, answer = self.server.request("POST", path, body, headers)
                self.assertEqual(status, 400, answer)
                self.assertIn("message", json.loads(answer)["error"])

    def test_the_memory_mode_is_switched_while_the_server_runs(self):
        def reasons():
            answer = self.server.json("POST", "/v1/chat/completions", {**QUESTION, "user": "mo"})
            return [item["reason"] for item in answer["memory"]["fallback"]]

        self.assertEqual(self.server.json("GET", "/v1/settings"), {"memory_mode": "kv"})
        self.assertNotIn("text_mode", reasons())
        self.server.json("PUT", "/v1/settings", {"memory_mode": "text"})
        self.assertIn("text_mode", reasons())
        self.server.json("PUT", "/v1/settings", {"memory_mode": "loud"}, status=400)
        self.server.json("PUT", "/v1/settings", {"memory_mode": "kv"})

    def test_logs_are_json_with_request_ids_and_without_texts(self):
        self.server.json("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a very secret sentence"}], "max_tokens": 1,
            "user": "secret-user"}, {"X-Request-ID": "find-me-7"})
        self.wait_for(lambda: any("find-me-7" in line for line in self.server.log),
                      self.server.process)
        for line in list(self.server.log):
            entry = json.loads(line)
            self.assertIn("time", entry)
            self.assertIn("level", entry)
            self.assertNotIn("secret", line)
        entry = next(json.loads(line) for line in self.server.log if "find-me-7" in line)
        self.assertEqual(entry["route"], "/v1/chat/completions")
        self.assertEqual(entry["status"], 200)


class Keys(ServeTest):
    ENVIRONMENT = {"INFERSCALE_REQUIRE_KEY": "always"}

    def setUp(self):
        super().setUp()
        self.admin = self.server.ready["first_key"]

    def make(self, **fields):
        return self.server.json("POST", "/api-keys", fields, bearer(self.admin), 201)

    def test_nothing_but_health_is_open_without_a_key(self):
        for headers in [{}, bearer("wrong"), bearer(""), {"X-API-Key": "wrong"},
                        {"Authorization": "Basic eDp5"}, bearer(self.admin + "0"),
                        bearer(self.admin[:-1])]:
            status, found, _ = self.server.request("POST", "/v1/chat/completions", QUESTION,
                                                   headers)
            self.assertEqual(status, 401, headers)
            self.assertIn("WWW-Authenticate", found)
            self.assertEqual(self.server.request("GET", "/metrics", headers=headers)[0], 401)
        self.server.json("GET", "/healthz")

    def test_a_key_opens_in_every_way_it_may_be_sent(self):
        key = self.make(label="client")["key"]
        for headers in [bearer(key), {"Authorization": f"Token {key}"}, {"X-API-Key": key},
                        {"Authorization": f"bearer {key}"}]:
            self.server.json("POST", "/v1/chat/completions", QUESTION, headers)

    def test_keys_are_listed_without_themselves_and_revoked(self):
        made = self.make(label="short-lived")
        listed = self.server.json("GET", "/api-keys", headers=bearer(self.admin))
        self.assertIn(made["id"], [key["id"] for key in listed])
        self.assertNotIn(made["key"], json.dumps(listed))
        self.server.json("DELETE", f"/api-keys/{made['id']}", headers=bearer(self.admin))
        self.assertEqual(
            self.server.request("GET", "/v1/models", headers=bearer(made["key"]))[0], 401)
        self.server.json("DELETE", f"/api-keys/{made['id']}", headers=bearer(self.admin),
                         status=404)

    def test_only_admins_manage_and_only_their_tenant(self):
        plain = self.make()["key"]
        for method, path in [("GET", "/api-keys"), ("POST", "/api-keys"), ("GET", "/metrics"),
                             ("DELETE", "/api-keys/x"), ("PUT", "/v1/settings")]:
            self.assertEqual(self.server.request(method, path, headers=bearer(plain))[0], 403)
        other = self.make(tenant="acme", admin=True)["key"]
        listed = self.server.json("GET", "/api-keys", headers=bearer(other))
        self.assertEqual({key["tenant"] for key in listed}, {"acme"})
        self.server.json("POST", "/api-keys", {"tenant": "default"}, bearer(other), 400)
        first = self.server.json("GET", "/api-keys", headers=bearer(self.admin))[0]["id"]
        self.server.json("DELETE", f"/api-keys/{first}", headers=bearer(other), status=404)

    def test_a_key_bound_to_an_owner_opens_nothing_else(self):
        key = self.make(user_id="anna")["key"]
        said = {"messages": [{"role": "user", "content": "Anna owns a canary"}], "max_tokens": 1}
        self.server.json("POST", "/v1/chat/completions", said, bearer(key))

        def facts(headers, **fields):
            answer = self.server.json("POST", "/v1/chat/completions", {
                **QUESTION, "memory": {"remember": False}, **fields}, headers)
            return [fact["memory"] for fact in answer["memory"]["facts"]]

        self.wait_for(lambda: "Anna owns a canary" in facts(bearer(key)), self.server.process)
        self.assertIn("Anna owns a canary", facts(bearer(self.admin), user_id="anna"))
        for fields in [{"user_id": "ben"}, {"user": "ben"}]:
            self.server.json("POST", "/v1/chat/completions", {**QUESTION, **fields}, bearer(key),
                             404)
        stranger = self.make(tenant="other")["key"]
        self.assertEqual(facts(bearer(stranger), user_id="anna"), [])

    def test_a_key_has_a_rate(self):
        key = self.make(requests_per_minute=3)["key"]
        answers = [self.server.request("GET", "/v1/models", headers=bearer(key))
                   for _ in range(6)]
        self.assertEqual([status for status, _, _ in answers[:3]], [200, 200, 200])
        self.assertEqual(answers[-1][0], 429)
        self.assertIn("Retry-After", answers[-1][1])

    def test_a_key_has_limits(self):
        made = self.make(tenant="small", max_facts=2, max_body_bytes=600)
        self.assertEqual((made["max_facts"], made["max_body_bytes"], made["max_kv_bytes"]),
                         (2, 600, 0))
        headers = bearer(made["key"])

        def add(text, status=200):
            return self.server.json("POST", "/memories", {
                "user_id": "zoe", "messages": text, "infer": False}, headers, status)

        add("Zoe has a zebra")
        self.assertIn("max_body_bytes", json.dumps(add("x" * 700, 413)))
        add("Zoe has a zither")
        self.assertIn("max_facts", json.dumps(add("Zoe has a zeppelin", 403)))
        answer = self.server.json("POST", "/v1/chat/completions", {**QUESTION, "user": "zoe"},
                                  headers)
        self.assertIn("max_facts", answer["memory"]["not_remembered"])
        listed = self.server.json("GET", "/memories?user_id=zoe", headers=headers)
        self.assertEqual(len(listed["results"]), 2)
        for wrong in [{"max_facts": -1}, {"max_kv_bytes": "x"}, {"max_body_bytes": 1.5}]:
            self.server.json("POST", "/api-keys", wrong, bearer(self.admin), 400)

    def test_a_key_has_a_limit_of_kv(self):
        headers = bearer(self.make(tenant="kv", max_kv_bytes=1)["key"])

        def add(text):
            return self.server.request("POST", "/memories", {
                "user_id": "kim", "messages": text, "infer": False}, headers)[0]

        self.assertEqual(add("Kim keeps koi"), 200)
        self.wait_for(lambda: add("Kim knits") == 403, self.server.process)

    def test_the_log_names_the_key_of_a_call_and_not_its_secret(self):
        made = self.make(label="logged")
        self.server.json("GET", "/v1/models",
                         headers={**bearer(made["key"]), "X-Request-ID": "logged-5"})
        self.wait_for(lambda: any("logged-5" in line for line in self.server.log),
                      self.server.process)
        entry = next(json.loads(line) for line in self.server.log if "logged-5" in line)
        self.assertEqual(entry["key"], made["id"])
        self.assertNotIn(made["key"], "".join(self.server.log))

    def test_the_data_folder_holds_no_key(self):
        secret = self.make()["key"].encode()
        for path in self.data.rglob("*"):
            if path.is_file():
                self.assertNotIn(secret, path.read_bytes(), path)


class Process(CliTest):
    def start_server(self, *arguments, **environment):
        server = Server(self, *arguments, **environment)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def test_keys_outlive_the_process_and_are_managed_without_it(self):
        made = self.json_of("keys", "create", "--label", "cli", "--for-user", "anna",
                            "--max-facts", "9", "--max-body-bytes", "5000")
        self.assertEqual(made["user_id"], "anna")
        self.assertEqual((made["max_facts"], made["max_body_bytes"]), (9, 5000))
        server = self.start_server(INFERSCALE_REQUIRE_KEY="always")
        self.assertNotIn("first_key", server.ready)
        server.json("GET", "/v1/models", headers=bearer(made["key"]))
        self.assertEqual(self.error_of("keys", "list")["code"], "unavailable")
        self.assertEqual(server.stop(), 0)
        self.assertEqual([key["id"] for key in self.json_of("keys", "list")["keys"]], [made["id"]])
        self.json_of("keys", "revoke", made["id"])
        self.assertEqual(self.json_of("keys", "list")["keys"], [])
        self.assertEqual(self.error_of("keys", "revoke", made["id"])["code"], "not_found")

    def test_sigterm_lets_an_answer_end(self):
        server = self.start_server()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.addCleanup(connection.close)
        body = json.dumps({**QUESTION, "max_tokens": 40, "stream": True, "temperature": 0})
        connection.request("POST", "/v1/chat/completions", body,
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.readline()
        server.process.send_signal(signal.SIGTERM)
        rest = response.read()
        self.assertTrue(first.startswith(b"data: "))
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(server.process.wait(timeout=60), 0)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=1)

    def test_a_taken_port_and_a_bad_address_are_said(self):
        server = self.start_server()
        error = self.error_of("serve", "--listen", f"127.0.0.1:{server.port}", "--data-dir",
                              str(self.home / "other"))
        self.assertEqual(error["code"], "failed_precondition")
        self.assertIn(str(server.port), error["message"])
        for listen in ["localhost:80", "127.0.0.1", ":8420", "127.0.0.1:99999", "::1:8420"]:
            error = self.error_of("serve", "--listen", listen)
            self.assertEqual(error["code"], "invalid_argument")

    def test_elsewhere_than_on_loopback_a_key_is_needed(self):
        server = self.start_server(INFERSCALE_LISTEN="0.0.0.0:0")
        key = server.ready["first_key"]
        self.assertEqual(server.request("GET", "/v1/models")[0], 401)
        server.json("GET", "/v1/models", headers=bearer(key))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    serve_support.main()
