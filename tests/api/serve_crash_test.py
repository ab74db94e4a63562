#!/usr/bin/env python3
"""kill -9 while clients write by HTTP: every answer that a client got stays true, and what no client
was told of is there whole or not at all."""

import http.client
import json
import random
import re
import signal
import threading
import time

import serve_support
from serve_support import CliTest, Server

SEED = 20261130
CLIENTS = 4
KILLS = 7
ANSWERS_A_LIFE = 60  # before a kill may come
PER_ADD = 3
TIMEOUT_S = 60


class Unanswered(Exception):
    """The connection broke before an answer was whole."""


class Owner:
    """What a user's memories must be."""

    def __init__(self, name):
        self.name = name
        self.memories = {}  # id: text, of adds that were done at once
        self.queued = {}  # text: event id of an add in the background; None: nobody was told of it
        self.wiped = set()  # queued texts that a later delete of everything took
        self.perhaps_wiped = set()  # the same of one that was not answered
        self.deleted = set()  # ids


class Client(threading.Thread):
    """A writer with owners of its own, who therefore knows what they must have."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.number = number
        self.random = random.Random(SEED + number)
        self.owners = [Owner(f"writer{number}-{letter}") for letter in "ab"]
        self.answers = self.unanswered = self.serial = 0
        self.port = self.connection = self.fault = None
        self.up = threading.Event()
        self.ended = False

    def new_text(self):
        self.serial += 1
        return f"writer {self.number} note {self.serial} on {self.random.getrandbits(48):012x}"

    def call(self, method, path, body=None):
        payload = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                             timeout=TIMEOUT_S)
            self.connection.request(method, path, payload, headers)
            response = self.connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            if self.connection is not None:
                self.connection.close()
                self.connection = None
            raise Unanswered from error
        if status != 200:
            raise AssertionError(f"{method} {path}: {status} {text}")
        return json.loads(text)

    def listed(self, owner):
        memories, page = {}, 1
        while True:
            answer = self.call("POST", f"/v3/memories/?page={page}&page_size=500",
                               {"filters": {"user_id": owner.name}})
            memories.update((item["id"], item["memory"]) for item in answer["results"])
            if answer["next"] is None:
                if answer["count"] != len(memories):
                    raise AssertionError(f"{answer['count']} memories, {len(memories)} listed")
                return memories
            page += 1

    def stored(self, owner):
        """The listed memories that adds in the background have not brought."""
        return {key: text for key, text in self.listed(owner).items() if text not in owner.queued}

    def run(self):
        try:
            while not self.ended:
                if self.up.wait(0.05):
                    step = self.random.choices(
                        [self.add, self.queue, self.update, self.delete, self.delete_all],
                        [6, 4, 4, 3, 0.4])[0]
                    step(self.random.choice(self.owners))
        except Exception as error:  # the test's own thread raises it again
            self.fault = error

    def write(self, owner, method, path, body, is_done):
        """(answer, whether the write was done). Without an answer the memories tell, which must be
        as before or as after it: `is_done(stored)`."""
        try:
            answer = self.call(method, path, body)
            self.answers += 1
            return answer, True
        except Unanswered:
            self.unanswered += 1
        while True:
            self.up.wait(TIMEOUT_S)
            try:
                stored = self.stored(owner)
                break
            except Unanswered:
                time.sleep(0.02)
        if stored == owner.memories:
            return None, False
        if not is_done(stored):
            raise AssertionError(f"half of {method} {path} {body} is done: {owner.memories} "
                                 f"became {stored}")
        owner.memories = stored
        return None, True

    def add(self, owner):
        texts = [self.new_text() for _ in range(PER_ADD)]

        def is_done(stored):
            more = [text for key, text in stored.items() if key not in owner.memories]
            return owner.memories.items() <= stored.items() and sorted(more) == sorted(texts)

        answer, _ = self.write(owner, "POST", "/v3/memories/add/", {
            "user_id": owner.name, "infer": False,
            "messages": [{"role": "user", "content": text} for text in texts]}, is_done)
        for row in (answer or {}).get("results", []):
            owner.memories[row["id"]] = row["memory"]

    def queue(self, owner):
        text = self.new_text()
        owner.queued[text] = None
        answer, _ = self.write(owner, "POST", "/v3/memories/add/",
                               {"user_id": owner.name, "messages": text}, lambda stored: False)
        if answer:
            owner.queued[text] = answer["event_id"]

    def update(self, owner):
        if owner.memories:
            memory_id, text = self.random.choice(sorted(owner.memories)), self.new_text()
            after = {**owner.memories, memory_id: text}
            if self.write(owner, "PUT", f"/v1/memories/{memory_id}/", {"text": text},
                          lambda stored: stored == after)[1]:
                owner.memories = after

    def delete(self, owner):
        if owner.memories:
            memory_id = self.random.choice(sorted(owner.memories))
            after = {key: text for key, text in owner.memories.items() if key != memory_id}
            if self.write(owner, "DELETE", f"/v1/memories/{memory_id}/", None,
                          lambda stored: stored == after)[1]:
                owner.memories = after
                owner.deleted.add(memory_id)

    def delete_all(self, owner):
        before = set(owner.memories)
        _, done = self.write(owner, "DELETE", f"/v1/memories/?user_id={owner.name}", None,
                             lambda stored: stored == {})
        if done:
            owner.memories = {}
            owner.deleted |= before
            owner.wiped |= set(owner.queued)
        elif not before:  # it may have been done: nothing tells
            owner.perhaps_wiped |= set(owner.queued)


class Crashes(CliTest):
    def finished(self, server, event_id):
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            event = server.json("GET", f"/v1/event/{event_id}/")
            if event["status"] in ("SUCCEEDED", "FAILED"):
                return event
            time.sleep(0.02)
        self.fail(f"event {event_id} does not end")

    def account(self, server, client, owner):
        # Events first: the list has what they bring then.
        events = {text: self.finished(server, event_id)
                  for text, event_id in owner.queued.items() if event_id is not None}
        found = client.listed(owner)
        texts = list(found.values())
        self.assertEqual(client.stored(owner), owner.memories)
        for text, event in events.items():
            self.assertEqual(event["status"], "SUCCEEDED", event)
            if text not in owner.perhaps_wiped:
                wanted = [] if text in owner.wiped else [text]
                self.assertEqual([each for each in texts if each == text], wanted)
                self.assertEqual([row["memory"] for row in event["results"]], wanted)
        for memory_id in owner.deleted:
            self.assertNotIn(memory_id, found)
            self.assertEqual(server.request("GET", f"/v1/memories/{memory_id}/")[0], 404)
        search = server.json("POST", "/v3/memories/search/", {
            "query": "note", "filters": {"user_id": owner.name}, "top_k": 1000, "threshold": 0})
        self.assertLessEqual({item["id"] for item in search["results"]}, set(found))
        chat = server.json("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "note"}], "user": owner.name,
            "max_tokens": 1, "memory": {"remember": False}})
        self.assertLessEqual({fact["id"] for fact in chat["memory"]["facts"]}, set(found))

    def test_every_answer_is_kept_through_kill_9(self):
        server = Server(self)
        clients = [Client(number) for number in range(CLIENTS)]
        chance = random.Random(SEED)
        for client in clients:
            client.start()
        for life in range(KILLS + 1):
            for client in clients:
                client.port = server.port
                client.up.set()
            wanted = sum(client.answers for client in clients) + ANSWERS_A_LIFE
            self.wait_for(lambda: sum(client.answers for client in clients) >= wanted
                          or any(client.fault for client in clients), server.process)
            if life == KILLS or any(client.fault for client in clients):
                break
            time.sleep(chance.uniform(0, 0.3))
            for client in clients:
                client.up.clear()
            server.stop(signal.SIGKILL)
            server = Server(self)
        self.addCleanup(server.stop)
        for client in clients:
            client.ended = True
        for client in clients:
            client.join(TIMEOUT_S)
            self.assertFalse(client.is_alive())
            if client.fault:
                raise client.fault
        unanswered = sum(client.unanswered for client in clients)
        self.assertGreater(unanswered, 0, "no kill hit a write")
        for client in clients:
            for owner in client.owners:
                with self.subTest(owner.name):
                    self.account(server, client, owner)
            client.connection.close()
        self.wait_for(lambda: re.search(rb'inferscale_pending\{work="erasures"\} 0\n',
                                        server.request("GET", "/metrics")[2]), server.process)
        print(f"{sum(client.answers for client in clients)} answers, {unanswered} unanswered, "
              f"{sum(len(owner.queued) for client in clients for owner in client.owners)} events")


if __name__ == "__main__":
    serve_support.main()
