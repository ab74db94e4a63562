#!/usr/bin/env python3
"""Two tenants that use the same ids, through the running program: neither can tell that the other
is there."""

import json
import re

import serve_support
from serve_support import ServeTest

NO_ID = "00000000-0000-4000-8000-000000000000"
SECRET = "the vault of zanzibar opens at dawn"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Tenants(ServeTest):
    ENVIRONMENT = {"INFERSCALE_REQUIRE_KEY": "always"}

    def setUp(self):
        super().setUp()
        self.operator = bearer(self.server.ready["first_key"])
        self.one = self.key(tenant="one")
        self.two = self.key(tenant="two")

    def tearDown(self):
        for tenant in ("one", "two"):
            self.server.json("POST", "/reset", {}, self.key(tenant=tenant, admin=True))

    def key(self, **fields):
        made = self.server.json("POST", "/api-keys", fields, self.operator, status=201)
        return bearer(made["key"])

    def add(self, headers, text, **fields):
        added = self.server.json("POST", "/v3/memories/add/", {
            "messages": text, "infer": False, "user_id": "alice", **fields}, headers)
        return added["results"][0]["id"]

    def texts(self, headers, filters=None):
        answer = self.server.json("POST", "/v3/memories/",
                                  {"filters": filters or {"user_id": "*"}}, headers)
        return sorted(item["memory"] for item in answer["results"])

    def answer(self, headers, method, path, body=None):
        """Status and body, without what differs between any two requests."""
        status, _, text = self.server.request(method, path, body, headers)
        return status, re.sub(rb'"request_id":"[^"]*"', b"", text)

    def test_an_id_of_the_other_is_an_id_of_nobody(self):
        mine = self.add(self.one, SECRET, metadata={"a": 1})
        theirs = self.add(self.two, "tea")
        event = self.server.json("POST", "/v3/memories/add/", {
            "messages": "queued", "user_id": "alice"}, self.one)["event_id"]
        probes = [("GET", "{}", None), ("GET", "{}/history", None), ("PUT", "{}", {"text": "x"}),
                  ("PUT", "{}", {"metadata": {"b": 2}}), ("DELETE", "{}", None),
                  ("DELETE", "{}?delete_linked=true", None)]
        paths = [(method, prefix + path, body) for prefix in
                 ("/memories/", "/v1/memories/", "/v2/memories/", "/v3/memories/")
                 for method, path, body in probes]
        for method in ("PUT", "DELETE"):
            paths.append((method, "/v1/batch/", {"memories": [{"memory_id": "{}", "text": "x"}]}))
            paths.append((method, "/v1/batch/", {"memories": [
                {"memory_id": theirs, "text": "x"}, {"memory_id": "{}", "text": "x"}]}))
        for method, path, body in paths:
            with self.subTest(f"{method} {path}"):
                answers = []
                for memory_id in (mine, NO_ID):
                    asked = json.loads(json.dumps(body).replace("{}", memory_id))
                    answers.append(self.answer(self.two, method, path.replace("{}", memory_id),
                                               asked))
                self.assertEqual(*answers)
                self.assertNotIn(b"zanzibar", answers[0][1])
        for path in ("/v1/event/{}/", "/v1/events/{}"):
            self.assertEqual(self.answer(self.two, "GET", path.format(event)),
                             self.answer(self.two, "GET", path.format(NO_ID)))
        self.assertEqual(self.texts(self.two), ["tea"])
        memory = self.server.json("GET", f"/v1/memories/{mine}", headers=self.one)
        self.assertEqual((memory["memory"], memory["metadata"]), (SECRET, {"a": 1}))
        self.assertEqual(len(self.server.json("GET", f"/v1/memories/{mine}/history",
                                              headers=self.one)), 1)

    def test_searches_lists_and_chats_find_ones_own(self):
        self.add(self.one, SECRET, agent_id="bot", run_id="r")
        self.add(self.two, "tea at four", agent_id="bot", run_id="r")
        for filters in [{"user_id": "alice"}, {"user_id": "*"}, {"OR": [{"user_id": "alice"}]},
                        {"NOT": {"user_id": "nobody"}}, {"agent_id": "bot"}, {"run_id": {"ne": "x"}}]:
            for path in ["/v3/memories/search/", "/v3/memories/", "/search"]:
                status, text = self.answer(self.two, "POST", path, {
                    "query": SECRET, "filters": filters, "threshold": 0, "top_k": 1000})
                self.assertIn(status, (200, 400))
                self.assertNotIn(b"zanzibar", text)
        for fields in [{"user": "alice"}, {"user_id": "alice", "agent_id": "bot", "run_id": "r"}]:
            for mode in ("kv", "text"):
                chat = self.server.json("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": SECRET}], "max_tokens": 1, **fields,
                    "memory": {"mode": mode, "remember": False}}, self.two)
                self.assertNotIn(SECRET, [fact["memory"] for fact in chat["memory"]["facts"]])

    def test_a_scope_is_not_told_by_what_a_client_makes_up(self):
        self.add(self.one, SECRET)
        for fields in [
            {"metadata": {"tenant": "one", "user_id": "bob", "agent_id": "x", "scope_id": 1}},
            {"tenant": "one"}, {"tenant_id": "one"}, {"org_id": "one", "project_id": "one"},
            {"scope": {"tenant": "one"}}, {"principal": {"tenant": "one", "admin": True}},
        ]:
            made = self.server.json("GET", f"/v1/memories/{self.add(self.two, 'mine', **fields)}",
                                    headers=self.two)
            self.assertEqual((made["user_id"], made["agent_id"]), ("alice", None))
            self.server.json("DELETE", "/v1/memories/?user_id=alice", headers=self.two)
        for headers in [{"X-Tenant": "one"}, {"X-Inferscale-Tenant": "one"}, {"X-Org-Id": "one"},
                        {"X-Inferscale-User": "alice"}, {"X-Forwarded-User": "one"},
                        {"Mem0-User-ID": "alice"}]:
            self.assertEqual(self.texts({**self.two, **headers}), [])
        for filters in [{"tenant": "one"}, {"user_id": "alice", "tenant": "one"},
                        {"AND": [{"tenant": "one"}, {"user_id": "alice"}]},
                        {"user_id": "one/alice"}, {"user_id": "alice' OR tenant='one"}]:
            for path in ["/v3/memories/", "/v3/memories/search/"]:
                _, text = self.answer(self.two, "POST", path, {"query": "x", "filters": filters,
                                                               "threshold": 0})
                self.assertNotIn(b"zanzibar", text)
        for path in ["/v1/memories/?user_id=alice&tenant=one", "/memories?user_id=alice&tenant=one",
                     "/v1/memories/?user_id=alice&org_id=one&project_id=one"]:
            self.assertNotIn(b"zanzibar", self.answer(self.two, "GET", path)[1])
        for path in ["/v1/memories/?user_id=alice&tenant=one", "/memories?user_id=alice&tenant=one",
                     "/v1/memories/?user_id=alice&org_id=one", "/v2/entities/user/alice/",
                     "/entities/user/alice", "/v1/memories/?user_id=*"]:
            self.answer(self.two, "DELETE", path)
        self.assertEqual(self.texts(self.one), [SECRET])

    def test_a_key_of_one_owner_cannot_name_another(self):
        self.add(self.one, SECRET)
        bound = self.key(tenant="one", user_id="bob")
        self.add(bound, "bob's own", user_id="bob")
        for fields in [{"user_id": "alice"}, {"filters": {"user_id": "alice"}, "user_id": None}]:
            status, _ = self.answer(bound, "POST", "/v3/memories/add/", {
                "messages": "planted", "infer": False, **fields})
            self.assertEqual(status, 404, fields)
        chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1,
                "memory": {"remember": False}}
        for extra, headers in [({"user": "alice"}, {}), ({"user_id": "alice"}, {}),
                               ({}, {"X-Inferscale-User": "alice"})]:
            status, _ = self.answer({**bound, **headers}, "POST", "/v1/chat/completions",
                                    {**chat, **extra})
            self.assertEqual(status, 404, (extra, headers))
        own = self.server.json("POST", "/v1/chat/completions", chat, bound)
        self.assertNotIn(SECRET, [fact["memory"] for fact in own["memory"]["facts"]])
        self.assertEqual(self.texts(bound), ["bob's own"])
        for path in ["/v1/memories/?user_id=alice", "/memories?user_id=alice",
                     "/entities/user/alice", "/v2/entities/user/alice/"]:
            self.answer(bound, "DELETE", path)
        for method, path in [("POST", "/reset"), ("GET", "/metrics"), ("GET", "/api-keys")]:
            self.assertEqual(self.answer(bound, method, path, {} if method == "POST" else None)[0],
                             403)
        names = [row["name"] for row in
                 self.server.json("GET", "/v1/entities/", headers=bound)["results"]]
        self.assertEqual(names, ["bob"])
        self.assertEqual(self.texts(self.one), sorted([SECRET, "bob's own"]))

    def test_what_one_has_cached_speeds_up_nothing_of_the_other(self):
        messages = [{"role": "system", "content": "You guard the vault. " * 20},
                    {"role": "user", "content": "When does it open?"}]

        def usage(headers):
            """(injected, reused, computed) tokens; the facts' KV is waited for."""
            chat = {"messages": messages, "max_tokens": 1, "user": "alice", "temperature": 0,
                    "memory": {"remember": False}}
            memory = self.server.json("POST", "/v1/chat/completions", chat, headers)["memory"]
            return memory["injected_tokens"], memory["reused_tokens"], memory["computed_tokens"]

        def settle():
            self.wait_for(lambda: b'inferscale_pending{work="encodings"} 0\n' in self.server.request(
                "GET", "/metrics", headers=self.operator)[2], self.server.process)

        self.add(self.one, SECRET)
        settle()
        first = usage(self.one)
        settle()
        again = usage(self.one)
        self.assertGreater(again[0] + again[1], first[1], "nothing is cached: this shows nothing")
        self.add(self.two, SECRET)
        settle()
        self.assertEqual(usage(self.two), first)
        prompt = {"prompt": "The vault of Zanzibar " * 20, "max_tokens": 1, "temperature": 0}
        for _ in range(2):
            self.server.json("POST", "/v1/completions", prompt, self.one)
        other = self.server.json("POST", "/v1/completions", prompt, self.two)
        self.assertEqual(other["memory"]["reused_tokens"], 0)

    def test_figures_and_lists_name_nobody(self):
        self.add(self.one, SECRET, user_id="very-private", agent_id="hidden-agent")
        text = self.server.request("GET", "/metrics", headers=self.operator)[2].decode()
        for word in ("private", "hidden", "zanzibar", "tenant=", 'one"', 'two"', "key_"):
            self.assertNotIn(word, text)
        admin = self.key(tenant="two", admin=True)
        # Figures of all tenants together would tell one of the other's doings.
        self.assertEqual(self.answer(admin, "GET", "/metrics")[0], 403)
        self.assertEqual(self.server.json("GET", "/entities", headers=admin), [])
        self.assertEqual(
            {key["tenant"] for key in self.server.json("GET", "/api-keys", headers=admin)}, {"two"})
        self.server.json("PUT", "/v1/settings", {"memory_mode": "off"}, admin)
        self.assertEqual(self.server.json("GET", "/v1/settings", headers=self.one),
                         {"memory_mode": "kv"})
        self.server.json("PUT", "/v1/settings", {"memory_mode": "kv"}, admin)
        self.server.json("POST", "/reset", {}, admin)
        self.assertEqual(self.texts(self.one), [SECRET])
        for line in list(self.server.log):
            for word in ("private", "hidden", "zanzibar"):
                self.assertNotIn(word, line)


if __name__ == "__main__":
    serve_support.main()
