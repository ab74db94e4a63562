#!/usr/bin/env python3
"""Mem0's own clients, synchronous and asynchronous, against the running service."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time

# The client phones home and writes a settings file unless told otherwise, before it is imported.
MEM0_FOLDER = tempfile.mkdtemp(prefix="inferscale-mem0-")
os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=MEM0_FOLDER)

import mem0  # noqa: E402
from mem0.client.types import (  # noqa: E402
    AddMemoryOptions,
    DeleteAllMemoryOptions,
    GetAllMemoryOptions,
    SearchMemoryOptions,
    UpdateMemoryOptions,
)
from mem0.exceptions import MemoryNotFoundError, ValidationError  # noqa: E402

import serve_support  # noqa: E402
from serve_support import CliTest, Server, ServeTest  # noqa: E402

UNICODE = "Grüße 🌊 — 東京\t\"quoted\" 'x' \\ – مرحبا é é"
ODD_IDS = ["a/b", "per%cent", "o'brien", 'dou"ble', "北京", "q?x=1&y#z", "..", "+plus+", "😀"]


def tearDownModule():
    shutil.rmtree(MEM0_FOLDER, ignore_errors=True)


def texts(answer):
    return [item["memory"] for item in answer["results"]]


class Mem0Client(ServeTest):
    def setUp(self):
        super().setUp()
        self.client = mem0.MemoryClient(api_key="any", host=self.server.url)
        self.addCleanup(self.client.client.close)
        self.addCleanup(self.server.json, "POST", "/reset")

    def keep(self, text, user="alice", **options):
        """Stores a text as it is and returns its id."""
        answer = self.client.add(text, user_id=user, infer=False, **options)
        return answer["results"][0]["id"]

    def listed(self, user="alice"):
        return texts(self.client.get_all(filters={"user_id": user}))

    def finished(self, event_id, headers=None):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            event = self.server.json("GET", f"/v1/event/{event_id}/", headers=headers)
            if event["status"] in ("SUCCEEDED", "FAILED"):
                return event
            time.sleep(0.05)
        raise AssertionError(f"event {event_id} does not end")

    def test_add_in_every_form_ends_as_a_succeeded_event(self):
        message = {"role": "user", "content": "I moved to Oslo"}
        answers = [
            self.client.add("I drink tea", user_id="alice"),
            self.client.add(message, user_id="alice", metadata={"city": "Oslo"}),
            self.client.add([{"role": "user", "content": "My cat is Pixel"},
                             {"role": "assistant", "content": "A fine name"}], user_id="alice"),
            self.client.add(UNICODE, AddMemoryOptions(filters={"user_id": "alice"},
                                                      expiration_date="2999-01-01")),
        ]
        for answer in answers:
            self.assertEqual(answer["status"], "PENDING")
            event = self.finished(answer["event_id"])
            self.assertEqual(event["status"], "SUCCEEDED", event)
            self.assertTrue(event["results"])
        for text in ["I drink tea", "I moved to Oslo", "My cat is Pixel", UNICODE]:
            self.assertIn(text, self.listed())

    def test_without_inference_texts_are_kept_byte_for_byte(self):
        text = "  " + UNICODE + "\r\n\n "
        answer = self.client.add([{"role": "system", "content": "be brief"},
                                  {"role": "user", "content": text},
                                  {"role": "assistant", "content": "second"}],
                                 user_id="alice", infer=False, metadata={"näme": UNICODE},
                                 timestamp=1700000000)
        self.assertEqual(answer["status"], "SUCCEEDED")
        self.assertEqual([row["data"]["memory"] for row in answer["results"]], [text, "second"])
        memory = self.client.get(answer["results"][0]["id"])
        self.assertEqual(memory["memory"], text)
        self.assertEqual(memory["metadata"], {"näme": UNICODE})
        self.assertEqual(memory["created_at"], "2023-11-14T22:13:20+00:00")
        self.assertEqual(self.client.get_all(filters={"user_id": "alice"})["count"], 2)

    def test_search(self):
        first = self.keep("the cat sleeps on the sofa", metadata={"kind": "pet"})
        self.keep("the train leaves at nine")
        self.keep("the cat belongs to bob", user="bob")
        found = self.client.search("where does the cat sleep?", filters={"user_id": "alice"})
        self.assertEqual(found["results"][0]["id"], first)
        self.assertNotIn("the cat belongs to bob", texts(found))
        options = SearchMemoryOptions(
            filters={"AND": [{"user_id": "alice"}, {"metadata": {"kind": "pet"}}]},
            top_k=1, threshold=0.0, rerank=True, fields=["memory", "score"],
            reference_date="2026-01-01", latest_only=True, keyword_search=True)
        only = self.client.search("cat", options)["results"]
        self.assertEqual([set(item) for item in only], [{"id", "memory", "score"}])
        self.assertEqual(texts(self.client.search("cat", filters={"user_id": "nobody"})), [])
        for filters in [{}, {"categories": {"in": ["x"]}}, {"user_id": "alice", "colour": "red"},
                        {"user_id": {"like": "a"}}, {"OR": []}]:
            with self.assertRaises(ValidationError, msg=str(filters)):
                self.client.search("cat", filters=filters)

    def test_get_all_in_pages(self):
        for number in range(5):
            self.keep(f"fact {number}", run_id="r 1".replace(" ", ""))
        first = self.client.get_all(filters={"user_id": "alice"}, page=1, page_size=2)
        self.assertEqual(first["count"], 5)
        self.assertEqual(len(first["results"]), 2)
        self.assertIsNone(first["previous"])
        self.assertIn("page=2", first["next"])
        self.assertEqual(first["results"][0]["session_id"], "r1")
        options = GetAllMemoryOptions(filters={"user_id": "alice"}, page=3, page_size=2)
        last = self.client.get_all(options)
        self.assertEqual(texts(last), ["fact 0"])
        self.assertIsNone(last["next"])

    def test_update_delete_and_history(self):
        memory_id = self.keep("tea")
        changed = self.client.update(memory_id, text=UNICODE, metadata={"a": 1},
                                     timestamp=1700000000)
        self.assertEqual((changed["memory"], changed["metadata"]), (UNICODE, {"a": 1}))
        self.client.update(memory_id, UpdateMemoryOptions(expiration_date="2020-01-01"))
        self.assertEqual(self.listed(), [])
        self.client.update(memory_id, expiration_date=None)
        self.assertEqual(self.listed(), [UNICODE])
        self.assertIn("message", self.client.delete(memory_id, delete_linked=True))
        with self.assertRaises(MemoryNotFoundError):
            self.client.get(memory_id)
        events = self.client.history(memory_id)
        self.assertEqual([row["event"] for row in events],
                         ["ADD", "UPDATE", "UPDATE", "UPDATE", "DELETE"])
        self.assertEqual(events[1]["new_memory"], UNICODE)
        for call in [self.client.delete, self.client.history,
                     lambda each: self.client.update(each, text="x")]:
            with self.assertRaises(MemoryNotFoundError):
                call("no/such%2Fid ü")

    def test_batches(self):
        ids = [self.keep(text) for text in ("one", "two", "three")]
        self.client.batch_update([{"memory_id": ids[0], "text": UNICODE},
                                  {"memory_id": ids[1], "metadata": {"b": 2}}])
        self.assertEqual(self.listed(), ["three", "two", UNICODE])
        with self.assertRaises(MemoryNotFoundError):
            self.client.batch_delete([{"memory_id": ids[0]}, {"memory_id": "nothing"}])
        self.assertEqual(len(self.listed()), 3)
        self.client.batch_delete([{"memory_id": ids[0]}, {"memory_id": ids[2]}])
        self.assertEqual(self.listed(), ["two"])

    def test_odd_ids_are_kept_apart(self):
        for user in ODD_IDS:
            self.keep("of " + user, user=user)
        users = self.client.users()
        self.assertEqual({each["name"] for each in users["results"]}, set(ODD_IDS))
        self.assertEqual(users["total_users"], len(ODD_IDS))
        for user in ODD_IDS:
            self.assertEqual(self.listed(user), ["of " + user])
        # httpx, not the server, resolves a path that ends in "..".
        gone = [user for user in ODD_IDS if user != ".."]
        for user in gone[::2]:
            self.client.delete_users(user_id=user)
        for user in gone[1::2]:
            self.client.delete_all(user_id=user)
        self.assertEqual([each["name"] for each in self.client.users()["results"]], [".."])
        with self.assertRaises(ValidationError):
            self.keep("x", user="two words")

    def test_delete_all_with_odd_filters(self):
        def fill():
            for user in ODD_IDS:
                self.keep("of " + user, user=user)

        for user in ODD_IDS:
            fill()
            answer = self.client.delete_all(options=DeleteAllMemoryOptions(filters={"user_id": user}))
            self.assertEqual(self.finished(answer["event_id"])["status"], "SUCCEEDED")
            self.assertEqual(self.listed(user), [])
            self.assertEqual(len(self.client.users()["results"]), len(ODD_IDS) - 1)
        fill()
        for options in [{}, {"filters": {}}, {"filters": {"user": "a/b"}},
                        {"filters": {"user_id": None}}, {"filters": {"user_id": ["a/b"]}},
                        {"filters": {"user_id": {"like": "a"}}}, {"filters": "user_id"},
                        {"user_id": "a/b", "colour": "red"}, {"filters": {"keywords": "x"}}]:
            with self.assertRaises(ValidationError, msg=str(options)):
                self.client.delete_all(**options)
        self.assertEqual(len(self.client.users()["results"]), len(ODD_IDS))
        self.client.delete_all(filters={"OR": [{"user_id": "a/b"}, {"user_id": {"in": ["..", "😀"]}}]})
        self.assertEqual(len(self.client.users()["results"]), len(ODD_IDS) - 3)

    def test_reset(self):
        self.keep("one")
        self.keep("two", user="bob", agent_id="helper")
        self.client.reset()
        self.assertEqual(self.client.users()["results"], [])
        with self.assertRaises(ValueError):
            self.client.reset()

    def test_what_there_is_not_is_an_error_with_words(self):
        for call in [lambda: self.client.create_memory_export("{}", user_id="a"),
                     lambda: self.client.get_memory_export(user_id="a"),
                     lambda: self.client.get_summary({"user_id": "a"}),
                     lambda: self.client.feedback("id", "POSITIVE"),
                     lambda: self.client.get_profile("a"),
                     lambda: self.client.get_webhooks("p")]:
            with self.assertRaises(Exception) as raised:
                call()
            self.assertIn("not part of this server", str(raised.exception))

    def test_the_servers_dialect(self):
        added = self.server.json("POST", "/memories", {
            "messages": [{"role": "user", "content": UNICODE}], "user_id": "alice"})
        memory_id = added["results"][0]["id"]
        self.assertEqual(self.server.json("GET", f"/memories/{memory_id}")["memory"], UNICODE)
        found = self.server.json("POST", "/search", {"query": "東京", "user_id": "alice"})
        self.assertEqual(found["results"][0]["id"], memory_id)
        self.assertEqual(self.server.json("GET", "/memories?user_id=alice")["results"][0]["id"],
                         memory_id)
        self.server.json("PUT", f"/memories/{memory_id}", {"text": "tea"})
        self.assertEqual(len(self.server.json("GET", f"/memories/{memory_id}/history")), 2)
        self.server.json("DELETE", "/memories", status=400)
        self.server.json("DELETE", "/memories?user_id=alice")
        self.assertIsNone(self.server.json("GET", f"/memories/{memory_id}"))

    def test_asynchronous_client(self):
        async def run():
            client = mem0.AsyncMemoryClient(api_key="any", host=self.server.url)
            try:
                added = await client.add(UNICODE, user_id="async", infer=False)
                memory_id = added["results"][0]["id"]
                self.assertEqual((await client.get(memory_id))["memory"], UNICODE)
                found = await client.search("東京", filters={"user_id": "async"}, threshold=0.0)
                self.assertEqual(texts(found), [UNICODE])
                listed = await client.get_all(filters={"user_id": "async"}, page=1, page_size=5)
                self.assertEqual(listed["count"], 1)
                await client.update(memory_id, text="changed")
                await client.batch_update([{"memory_id": memory_id, "text": "again"}])
                self.assertEqual(len(await client.history(memory_id)), 3)
                self.assertEqual((await client.users())["total_users"], 1)
                other = (await client.add("other", user_id="async", infer=False))["results"][0]
                await client.batch_delete([{"memory_id": other["id"]}])
                await client.delete(memory_id)
                await client.add("last", user_id="async", infer=False)
                await client.delete_all(user_id="async")
                await client.add("really", user_id="a/b", infer=False)
                await client.delete_users(user_id="a/b")
                self.assertEqual((await client.users())["results"], [])
            finally:
                await client.async_client.aclose()

        asyncio.run(run())


class Mem0Keys(ServeTest):
    """Two tenants on the same ids."""

    def client(self, **fields):
        """A client with a key of its own, and the key."""
        key = self.server.json("POST", "/api-keys", fields, status=201)["key"]
        client = mem0.MemoryClient(api_key=key, host=self.server.url)
        self.addCleanup(client.client.close)
        return client

    def test_tenants_and_bound_keys_do_not_meet(self):
        one, two = self.client(tenant="one"), self.client(tenant="two")
        mine = one.add("mine", user_id="alice", infer=False)["results"][0]["id"]
        theirs = two.add("theirs", user_id="alice", infer=False)["results"][0]["id"]
        pending = one.add("later", user_id="alice")["event_id"]
        self.assertEqual(texts(two.get_all(filters={"user_id": "alice"})), ["theirs"])
        self.assertEqual(texts(two.search("mine", filters={"user_id": "*"}, threshold=0.0)),
                         ["theirs"])
        for call in [two.get, two.delete, two.history, lambda each: two.update(each, text="x"),
                     lambda each: two.batch_delete([{"memory_id": theirs}, {"memory_id": each}])]:
            with self.assertRaises(MemoryNotFoundError) as raised:
                call(mine)
            self.assertNotIn(mine, str(raised.exception))
        self.assertEqual(
            two.client.get(f"/v1/event/{pending}/").status_code, 404)
        self.assertEqual(one.client.get(f"/v1/event/{pending}/").status_code, 200)

        bound = self.client(tenant="one", user_id="alice")
        one.add("bob's", user_id="bob", infer=False)
        self.assertIn("mine", texts(bound.get_all(filters={"user_id": "*"})))
        self.assertNotIn("bob's", texts(bound.get_all(filters={"user_id": "*"})))
        with self.assertRaises(MemoryNotFoundError):
            bound.add("x", user_id="bob", infer=False)
        two.reset()
        self.assertIn("mine", texts(one.get_all(filters={"user_id": "alice"})))


class Mem0Process(CliTest):
    def test_a_wrong_key_is_refused(self):
        server = Server(self, INFERSCALE_REQUIRE_KEY="always")
        self.addCleanup(server.stop)
        with self.assertRaises(ValueError) as raised:
            mem0.MemoryClient(api_key="wrong", host=server.url)
        self.assertIn("Error: ", str(raised.exception))
        for authorization in ["Token wrong", "Bearer wrong", "Token ", "Basic eDp5"]:
            answer = server.json("POST", "/v3/memories/", {"filters": {"user_id": "a"}},
                                 {"Authorization": authorization}, status=401)
            self.assertIn("detail", answer)

    def test_what_get_all_returns_is_imported_as_it_is(self):
        server = Server(self)
        client = mem0.MemoryClient(api_key="any", host=server.url)
        for number, user in enumerate(["alice", "a/b", "北京"]):
            client.add(f"{UNICODE} {number}", user_id=user, run_id="r1", infer=False,
                       metadata={"näme": UNICODE, "categories": ["food"]},
                       timestamp=1700000000 + number, expiration_date="2999-01-01")
        everything = client.get_all(filters={"user_id": "*"})
        client.client.close()
        self.assertEqual(server.stop(), 0)
        (self.home / "mem0.json").write_text(json.dumps(everything))
        self.environment["INFERSCALE_DATA_DIR"] = str(self.home / "second")
        self.assertEqual(self.json_of("import", str(self.home / "mem0.json"))["added"], 3)
        server = Server(self)
        self.addCleanup(server.stop)
        again = server.json("POST", "/v3/memories/", {"filters": {"user_id": "*"}})
        self.assertEqual(again["results"], everything["results"])

    def test_events_outlive_kill_9(self):
        server = Server(self)
        client = mem0.MemoryClient(api_key="any", host=server.url)
        events = [client.add(f"fact number {number}", user_id="alice")["event_id"]
                  for number in range(30)]
        kept = [client.add(f"kept {number}", user_id="bob", infer=False)["results"][0]["id"]
                for number in range(10)]
        client.client.close()
        server.stop(signal.SIGKILL)
        server = Server(self)
        self.addCleanup(server.stop)
        client = mem0.MemoryClient(api_key="any", host=server.url)
        self.addCleanup(client.client.close)
        for number, memory_id in enumerate(kept):
            self.assertEqual(client.get(memory_id)["memory"], f"kept {number}")
        end = time.monotonic() + 60
        for number, event in enumerate(events):
            while True:
                found = server.json("GET", f"/v1/event/{event}/")
                if found["status"] in ("SUCCEEDED", "FAILED"):
                    break
                self.assertLess(time.monotonic(), end, "events do not end")
                time.sleep(0.05)
            self.assertEqual(found["status"], "SUCCEEDED")
            self.assertEqual([row["memory"] for row in found["results"]],
                             [f"fact number {number}"])
        self.assertEqual(client.get_all(filters={"user_id": "alice"})["count"], 30)


if __name__ == "__main__":
    serve_support.main()
