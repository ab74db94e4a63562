#!/usr/bin/env python3
"""Dates of every kind, texts too long for the model or for the catalog, deletes that cannot be
finished, and an extractor that fails: nothing is stored by half."""

import http.server
import json
import threading
import time

import cli_support
import serve_support
from cli_support import FakeServer
from serve_support import CliTest, Server, ServeTest

TOO_LONG = "x" * ((16 << 20) + 1)  # bytes of one text


class Dates(ServeTest):
    # Wherever the server stands, a date without a zone is one of UTC.
    ENVIRONMENT = {"TZ": "Pacific/Kiritimati"}

    def add(self, **fields):
        added = self.server.json("POST", "/v3/memories/add/", {
            "messages": f"dated {sorted(fields.items())}", "infer": False, "user_id": "anna",
            **fields})
        return added["results"][0]["id"]

    def found(self, **condition):
        answer = self.server.json("POST", "/v3/memories/", {
            "filters": {"AND": [{"user_id": "anna"}, *({name: value} for name, value
                                                       in condition.items())]}})
        return {item["id"] for item in answer["results"]}

    def test_one_moment_in_many_words(self):
        for words in [1764403200, "1764403200", 1764403200.0, "2025-11-29T08:00:00Z",
                      "2025-11-29T08:00:00", "2025-11-29 08:00", "2025-11-29T13:30:00+05:30",
                      "2025-11-28T22:00:00-1000", "2025-11-29T22:00:00+14", "2025-11-29T08:00:00.000Z"]:
            memory = self.server.json("GET", f"/v1/memories/{self.add(timestamp=words, run_id='w')}")
            self.assertEqual(memory["created_at"], "2025-11-29T08:00:00+00:00", words)

    def test_what_is_no_moment_is_refused(self):
        for words in ["yesterday", "", "2025-02-30", "2025-11-29T24:01:00Z", "2025-11-29T08:00:60Z",
                      "2025-11-29T08:00:00+25:00", "29.11.2025", "2025-11-29T08:00:00 Europe/Berlin",
                      1e18, -1e18, True, [], {}, "9" * 400, "1e400", "nan"]:
            self.server.json("POST", "/v3/memories/add/", {
                "messages": "x", "infer": False, "user_id": "anna", "timestamp": words}, status=400)

    def test_filters_know_zones(self):
        early = self.add(timestamp="2020-06-01T23:30:00-02:00")  # 01:30 of the next day
        late = self.add(timestamp="2020-06-02T12:00:00Z")
        for condition, wanted in [
            ({"created_at": {"gte": "2020-06-02", "lt": "2020-06-03"}}, {early, late}),
            ({"created_at": {"lt": "2020-06-02"}}, set()),
            ({"created_at": {"lt": "2020-06-02T01:30:00Z"}}, set()),
            ({"created_at": {"lte": "2020-06-02T03:30:00+02:00"}}, {early}),
            ({"created_at": {"gt": "2020-06-02T03:30:00+02:00", "lt": "2020-07-01"}}, {late}),
        ]:
            self.assertEqual(self.found(**condition), wanted, condition)
        for wrong in ["2020-13-01", "soon", "", [], {}]:
            self.server.json("POST", "/v3/memories/", {"filters": {"AND": [
                {"user_id": "anna"}, {"created_at": {"gte": wrong}}]}}, status=400)

    def test_a_memory_expires_by_the_day_of_utc(self):
        for words, there in [("2999-12-31", True), ("2020-01-01", False),
                             ("2999-12-31T23:59:00+14:00", True), ("2020-01-01T00:00:00Z", False)]:
            memory_id = self.add(expiration_date=words)
            self.assertEqual(memory_id in self.found(), there, words)
        for words in ["never", "2025-02-30", 5, "31-12-2999"]:
            self.server.json("POST", "/v3/memories/add/", {
                "messages": "x", "infer": False, "user_id": "anna", "expiration_date": words},
                status=400)


class LongTexts(ServeTest):
    def listed(self, user):
        answer = self.server.json("POST", "/v3/memories/", {"filters": {"user_id": user}})
        return [item["memory"] for item in answer["results"]]

    def test_twenty_thousand_tokens_are_kept_and_found(self):
        text = " ".join(f"item {number} costs {number % 97} euros;" for number in range(4000))
        self.assertGreater(len(text), 80_000)
        added = self.server.json("POST", "/memories", {
            "messages": text, "user_id": "long", "infer": False})
        self.assertEqual(self.server.json("GET", f"/memories/{added['results'][0]['id']}")["memory"],
                         text)
        found = self.server.json("POST", "/search", {
            "query": "item 3999 costs", "user_id": "long", "threshold": 0})
        self.assertEqual([item["memory"] for item in found["results"]], [text])
        # Longer than the model's context: the chat goes on, with or without it, and says so.
        for mode in ("kv", "text"):
            chat = self.server.json("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": "item 3999"}], "user": "long",
                "max_tokens": 2, "memory": {"mode": mode, "remember": False}})
            self.assertTrue(chat["choices"][0]["message"])
            self.assertTrue(chat["memory"]["fallback"])
        self.server.json("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": text}], "max_tokens": 2}, status=400)

    def test_one_over_long_item_leaves_the_others_as_they_were(self):
        ids = [self.server.json("POST", "/memories", {
            "messages": text, "user_id": "batch", "infer": False})["results"][0]["id"]
            for text in ("one", "two")]
        self.server.json("PUT", "/v1/batch/", {"memories": [
            {"memory_id": ids[0], "text": "changed"}, {"memory_id": ids[1], "text": TOO_LONG}]},
            status=400)
        self.assertEqual(self.listed("batch"), ["two", "one"])
        for infer in (False, True):
            self.server.json("POST", "/v3/memories/add/", {"user_id": "batch", "infer": infer,
                "messages": [{"role": "user", "content": "three"},
                             {"role": "user", "content": TOO_LONG}]}, status=400)
        self.assertEqual(self.listed("batch"), ["two", "one"])
        self.server.json("PUT", f"/v1/memories/{ids[0]}/", {"text": TOO_LONG}, status=400)
        status, _, _ = self.server.request("POST", "/v1/memories/", {
            "messages": TOO_LONG * 2, "user_id": "batch"})
        self.assertEqual(status, 413)
        embeddings = self.server.json("POST", "/v1/embeddings", {"input": ["short", "long " * 50_000]})
        self.assertEqual(len(embeddings["data"]), 2)
        self.assertEqual(self.listed("batch"), ["two", "one"])


class ManyFacts(CliTest):
    def test_twenty_thousand_tokens_are_extracted(self):
        FakeServer(self)  # embeds
        server = Server(self)
        self.addCleanup(lambda: server.stop())
        rest = "and was chosen with care from everything on offer, " * 5
        text = " ".join(f"Item {number} costs {number % 97} euros, {rest}as always."
                        for number in range(350))
        self.assertGreater(len(text), 80_000)
        added = server.json("POST", "/v3/memories/add/", {"messages": text, "user_id": "split"})
        end = time.monotonic() + cli_support.TIMEOUT_S
        while True:
            event = server.json("GET", f"/v1/event/{added['event_id']}/")
            if event["status"] in ("SUCCEEDED", "FAILED"):
                break
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertEqual(event["status"], "SUCCEEDED")
        self.assertIn("Item 349 costs 58 euros", " ".join(row["memory"] for row in event["results"]))


class PartialDelete(CliTest):
    def test_a_delete_whose_kv_cannot_be_removed_is_done_later(self):
        server = Server(self)
        self.addCleanup(lambda: server.stop())
        kept, gone = (server.json("POST", "/memories", {
            "messages": text, "user_id": "anna", "infer": False})["results"][0]["id"]
            for text in ("kept words", "gone words"))
        self.wait_for(lambda: len(self.kv_files()) >= 2, server.process)
        files = self.kv_files()
        # A folder where the file was cannot be removed as a file.
        for path in files:
            path.rename(path.with_suffix(".aside"))
            (path / "inside").mkdir(parents=True)
        status, _, answer = server.request("DELETE", f"/v1/memories/{gone}/")
        # The memory is gone; its KV will be. A client that reads the status knows the difference.
        self.assertEqual(status, 503, answer)
        self.assertNotIn(str(self.data), answer.decode())
        audits = [json.loads(line) for line in list(server.log) if "memories erased" in line]
        self.assertEqual([line["memories"] for line in audits], [1])
        # Whatever was answered, the memory is gone and nothing of it is served.
        self.assertEqual(server.request("GET", f"/v1/memories/{gone}/")[0], 404)
        self.assertEqual(server.json("GET", f"/v1/memories/{kept}/")["memory"], "kept words")
        found = server.json("POST", "/search", {"query": "words", "user_id": "anna", "threshold": 0})
        self.assertEqual([item["id"] for item in found["results"]], [kept])
        chat = server.json("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "words"}], "user": "anna", "max_tokens": 1,
            "memory": {"remember": False}})
        self.assertEqual([fact["id"] for fact in chat["memory"]["facts"]], [kept])
        # What waits to be removed holds up nobody's adds.
        event = server.json("POST", "/v3/memories/add/", {
            "messages": "later words", "user_id": "ben"})["event_id"]
        self.wait_for(lambda: server.json("GET", f"/v1/event/{event}/")["status"] == "SUCCEEDED",
                      server.process)
        status, _, _ = server.request("DELETE", "/v1/memories/?user_id=ben")
        self.assertEqual(status, 200)
        self.assertEqual(server.stop(), 0)
        for path in files:
            (path / "inside").rmdir()
            path.rmdir()
            path.with_suffix(".aside").rename(path)
        server = Server(self)
        self.wait_for(lambda: b'inferscale_pending{work="erasures"} 0\n' in
                      server.request("GET", "/metrics")[2], server.process)
        self.assertLessEqual(len([path for path in files if path.exists()]), 1)
        self.assertEqual(server.json("GET", f"/v1/memories/{kept}/")["memory"], "kept words")


class Extractor(http.server.ThreadingHTTPServer):
    """Answers as it is told: a status, "hang" until released, or text that is no answer."""

    daemon_threads = True

    def __init__(self, test):
        super().__init__(("127.0.0.1", 0), ExtractorHandler)
        self.manner = 200
        self.released = threading.Event()
        self.waiting = threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        for step in (self.server_close, self.shutdown, self.released.set):
            test.addCleanup(step)
        test.environment["INFERSCALE_EXTRACTOR_URL"] = f"http://127.0.0.1:{self.server_port}/v1"
        test.environment["INFERSCALE_EXTRACTOR_MODEL"] = "fake"

    def handle_error(self, request, client_address):
        """A client that gave up is part of the test."""


class ExtractorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        manner = self.server.manner
        status, body = 200, b"{}"
        if manner == "hang":
            self.server.waiting.release()
            self.server.released.wait(cli_support.TIMEOUT_S)
            status, body = 500, b"{}"
        elif manner == "no answer":
            body = b'{"choices": [{"message": {"content": "I would rather not."}}]}'
        elif manner == "no json":
            body = b"<html>Bad gateway</html>"
        else:
            status, body = manner, b'{"error": {"message": "upstream says no"}}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class FailingExtractor(CliTest):
    def test_a_failing_model_stores_nothing_and_slows_nobody(self):
        extractor = Extractor(self)
        server = Server(self)
        self.addCleanup(lambda: server.stop())
        server.json("POST", "/memories", {
            "messages": "known already", "user_id": "anna", "infer": False})

        def others_go_on():
            found = server.json("POST", "/search", {
                "query": "known", "user_id": "anna", "threshold": 0})
            self.assertEqual([item["memory"] for item in found["results"]], ["known already"])
            chat = server.json("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": "known?"}], "user": "anna",
                "max_tokens": 2, "memory": {"remember": False}})
            self.assertTrue(chat["memory"]["facts"])
            self.assertEqual(len(server.json("GET", "/memories?user_id=anna")["results"]), 1)

        for manner in (429, 500, 503, 400, 401, "no answer", "no json"):
            with self.subTest(manner):
                extractor.manner = manner
                status, _, text = server.request("POST", "/memories", {
                    "messages": "I moved to Oslo", "user_id": "anna"})
                self.assertIn(status, (502, 200) if manner == "no answer" else (502,), text)
                self.assertIn("detail" if status == 502 else "results", json.loads(text))
                self.assertNotIn(str(extractor.server_port).encode(), text)
                self.assertNotIn(b"upstream", text)
                others_go_on()

        extractor.manner = "hang"
        hanging = threading.Thread(target=server.request, args=("POST", "/memories", {
            "messages": "I moved to Bergen", "user_id": "anna"}))
        hanging.start()
        queued = server.json("POST", "/v3/memories/add/", {
            "messages": "I moved to Tromsø", "user_id": "anna"})
        self.assertTrue(extractor.waiting.acquire(timeout=cli_support.TIMEOUT_S))
        for _ in range(3):
            others_go_on()  # while the extractor has not answered
        self.assertIn(server.json("GET", f"/v1/event/{queued['event_id']}/")["status"],
                      ("PENDING", "RUNNING"))
        extractor.manner = 400  # for good: not tried again
        extractor.released.set()
        hanging.join(cli_support.TIMEOUT_S)
        end = time.monotonic() + cli_support.TIMEOUT_S
        while server.json("GET", f"/v1/event/{queued['event_id']}/")["status"] != "FAILED":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        others_go_on()


if __name__ == "__main__":
    serve_support.main()
