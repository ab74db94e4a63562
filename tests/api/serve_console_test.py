#!/usr/bin/env python3
"""The web console in headless Chromium, as its users see it."""

import json
import os
import pathlib
import unittest

import browser
import serve_support
from browser import Page
from serve_support import CliTest, Server, ServeTest

# A folder for pictures of the page, for people to look at.
PICTURES = os.environ.get("INFERSCALE_CONSOLE_PICTURES")
HOSTILE = ("<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>"
           "</p><b>bold</b> &amp; {{1+1}} \" ' ` \u202e")
NO_BROWSER = "no Chromium here: install the package chromium to test the console"
CHROMIUM = None


def setUpModule():
    global CHROMIUM
    if browser.find() is None:
        raise unittest.SkipTest(NO_BROWSER)
    CHROMIUM = browser.Browser()
    unittest.addModuleCleanup(CHROMIUM.close)


class ConsoleTest:
    """What tests of the page share; a server is `self.server`."""

    def page(self, *size, user=None, key=None, path="/", expected_errors=(), **look):
        page = Page(CHROMIUM, *size, **look)
        self.addCleanup(page.close)
        self.addCleanup(self.check_errors, page, expected_errors)
        page.open(self.server.url + path)
        page.wait("document.querySelector('#memories-empty h3')")
        if key:
            self.use_key(page, key)
        if user:
            self.choose(page, user)
        return page

    def check_errors(self, page, expected):
        """Also breaches of the content security policy are errors of the console."""
        errors = [error for error in page.errors if not any(each in error for each in expected)]
        self.assertEqual(errors, [])
        self.assertEqual([url for url in page.requests
                          if not url.startswith((self.server.url, "about:", "data:"))], [])

    def choose(self, page, user):
        page.fill("#user", user)
        page.key("Enter")
        page.wait("!document.querySelector('#memories-tools').hidden")
        self.settled(page)

    def use_key(self, page, key, accepted=True):
        if not page.run("document.querySelector('#key-dialog').open"):
            page.click("#key-button")
        page.fill("#key", key)
        page.key("Enter")
        # A refused key may have opened it again before anybody looks.
        if accepted:
            page.wait("!document.querySelector('#key-dialog').open")

    def settled(self, page):
        page.wait("!document.querySelector('#memory-list').hasAttribute('aria-busy')")

    def add(self, page, text):
        before = len(page.texts(".memory"))
        page.fill("#new-memory", text)
        page.key("Enter")
        page.wait(f"document.querySelectorAll('.memory').length > {before}")
        self.settled(page)

    def ask(self, page, question, mode="kv"):
        turns = len(page.texts(".turn"))
        answered = len(page.texts(".evidence-link"))  # one that was stopped has none
        page.click(f"input[name=mode][value={mode}]")
        page.fill("#question", question)
        page.key("Enter")
        page.wait(f"document.querySelectorAll('.evidence-link').length > {answered}")
        self.assertEqual(len(page.texts(".turn")), turns + 1)

    def texts_of(self, user, headers=None):
        answer = self.server.json("POST", "/v3/memories/", {"filters": {"user_id": user}}, headers)
        return [item["memory"] for item in answer["results"]]

    def keep(self, user, *texts):
        for text in texts:
            self.server.json("POST", "/v3/memories/add/",
                             {"messages": text, "user_id": user, "infer": False})

    def picture(self, page, name):
        if PICTURES:
            pathlib.Path(PICTURES).mkdir(parents=True, exist_ok=True)
            page.screenshot(pathlib.Path(PICTURES) / f"{name}.png")


class Console(ConsoleTest, ServeTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.server.json, "POST", "/reset")

    def test_the_page_comes_with_a_strict_policy(self):
        for path in ["/", "/console/main.js", "/console/console.css"]:
            status, headers, body = self.server.request("GET", path)
            self.assertEqual(status, 200)
            self.assertTrue(body)
            policy = headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertIn("frame-ancestors 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertNotIn("*", policy)
            self.assertNotIn("Access-Control-Allow-Origin", headers)
        self.assertEqual(self.server.request("GET", "/console/nothing.js")[0], 404)

    def test_without_memories_it_says_what_to_do(self):
        page = self.page()
        self.assertEqual(page.text("#memories-empty h3"), "Choose a user")
        self.picture(page, "start")
        self.keep("anna", "Anna likes tea.")
        page.open(self.server.url)
        page.wait_text(".chips", "anna")
        page.click(".chips button")
        page.wait_text(".memory .text", "Anna likes tea.")
        self.choose(page, "nobody-yet")
        page.wait_text("#memories-empty", "Nothing is remembered of nobody-yet yet")
        self.picture(page, "empty")

    def test_add_search_edit_and_delete(self):
        page = self.page(user="anna")
        self.add(page, "Anna parks on level 3.")
        self.add(page, "Anna has two cats, Ada and Bo.")
        self.assertEqual(page.texts(".memory .text"),
                         ["Anna has two cats, Ada and Bo.", "Anna parks on level 3."])
        self.assertEqual(page.text("#memories-count"), "2")
        page.fill("#new-memory", "Anna has two cats, Ada and Bo.")
        page.key("Enter")
        page.wait_text("#memories-notice", "remembered already")
        self.assertEqual(len(self.texts_of("anna")), 2)

        page.fill("#query", "cats")
        page.wait("document.querySelector('#memories-count').textContent.includes('found')")
        self.assertIn("Ada and Bo", page.text(".memory .text"))
        page.key("Escape")
        page.wait("document.querySelector('#memories-count').textContent === '2'")

        page.click("[data-action=edit]", 1)
        page.run("document.activeElement.select()")
        page.type("no")
        page.key("Escape")
        self.assertEqual(page.texts(".memory .text")[1], "Anna parks on level 3.")
        self.assertEqual(page.run("document.activeElement.dataset.action"), "edit")
        page.key("Enter")
        page.run("document.activeElement.select()")
        page.type("Anna parks on level 4.")
        page.key("Enter")
        page.wait("document.querySelectorAll('.memory .text')[1]?.textContent.includes('level 4')")
        self.assertIn("Anna parks on level 4.", self.texts_of("anna"))

        page.click("[data-action=history]", 1)
        page.wait("document.querySelector('#history').open")
        self.assertEqual(page.texts("#history strong"), ["Added", "Changed"])
        self.assertEqual(page.text("#history del"), "Anna parks on level 3.")
        self.picture(page, "history")
        page.key("Escape")
        page.wait("!document.querySelector('#history').open")

        page.click("[data-action=delete]", 1)
        self.assertEqual(page.run("document.activeElement.dataset.action"), "confirm")
        page.key("Escape")
        self.assertEqual(len(page.texts(".memory")), 2)
        page.click("[data-action=delete]", 1)
        self.picture(page, "delete")
        page.key("Enter")
        page.wait("document.querySelectorAll('.memory').length === 1")
        self.assertEqual(self.texts_of("anna"), ["Anna has two cats, Ada and Bo."])
        page.wait("document.querySelector('#memories-count').textContent === '1'")

        page.click("#delete-all")
        page.wait("document.querySelector('#confirm').open")
        page.key("Enter")  # the cautious button has the focus
        page.wait("!document.querySelector('#confirm').open")
        self.assertEqual(len(self.texts_of("anna")), 1)
        page.click("#delete-all")
        page.wait("document.querySelector('#confirm').open")
        page.click("#confirm-yes")
        page.wait("document.querySelectorAll('.memory').length === 0")
        self.assertIn("Nothing is remembered of anna yet", page.text("#memories-empty"))
        self.assertEqual(self.texts_of("anna"), [])

    def test_many_memories_come_in_pages(self):
        self.keep("anna", *[f"Fact number {number}." for number in range(55)])
        page = self.page(user="anna")
        self.assertEqual(len(page.texts(".memory")), 50)
        self.assertEqual(page.text("#memories-count"), "55")
        page.click("#more")
        page.wait("document.querySelectorAll('.memory').length === 55")
        self.assertTrue(page.run("document.querySelector('#more').hidden"))
        self.assertEqual(len(set(page.texts(".memory .text"))), 55)

    def test_facts_are_text_and_never_html(self):
        user = "<b>u</b>&amp;\"'"
        page = self.page(user=user)
        self.add(page, HOSTILE)
        self.assertEqual(page.text(".memory .text"), HOSTILE)
        self.assertEqual(self.texts_of(user), [HOSTILE])
        page.click("[data-action=history]")
        page.wait("document.querySelector('#history').open")
        self.assertEqual(page.text("#history .text"), HOSTILE)
        page.key("Escape")
        self.ask(page, HOSTILE, "text")
        self.assertEqual(page.text(".message.user .text"), HOSTILE)
        self.assertIn(HOSTILE, page.texts(".facts .text"))
        page.fill("#query", "<i>zebra</i> quokka")
        page.wait("document.querySelector('#memories-count').textContent.includes('found') ||"
                  "!document.querySelector('#memories-empty').hidden")
        self.assertIsNone(page.run("window.hacked ?? null"))
        self.assertEqual(page.run("document.querySelectorAll('b, i, main img, body script').length"), 0)
        # What the page itself cannot do, nobody who got into it can.
        self.assertTrue(page.run("(() => { try { document.body.insertAdjacentHTML('beforeend', '<i>');"
                                 " return false; } catch { return true; } })()"))
        page.errors.clear()

    def test_chat_shows_what_was_injected(self):
        self.keep("anna", "Anna parks on level 3.", "Anna has two cats.")
        page = self.page(user="anna")
        self.ask(page, "Where does Anna park?", "kv")
        self.assertTrue(page.text(".message.assistant .text"))
        self.assertIn("to first token · 2 memories", page.text(".evidence-link"))
        self.assertIn("ms", page.text("#evidence .figure"))
        self.assertEqual(len(page.texts(".facts li")), 2)
        numbers = dict(zip(["injected", "reused", "computed"],
                           [int(each.replace(",", "")) for each in page.texts(".legend strong")]))
        self.assertGreater(numbers["computed"], 0)
        self.assertGreater(numbers["injected"] + numbers["reused"], 0)
        self.ask(page, "And the cats?", "off")
        self.assertIn("0 memories", page.texts(".evidence-link")[1])
        self.assertIn("conversation alone", page.text("#evidence"))
        page.click(".evidence-link")
        self.assertEqual(len(page.texts(".facts li")), 2)

    def test_what_is_said_is_remembered_unless_not_wanted(self):
        page = self.page(user="ben")
        page.click("#remember")
        self.ask(page, "I keep bees.")
        page.click("#remember")
        self.ask(page, "I play the cello.")
        page.wait("[...document.querySelectorAll('.memory .text')]"
                  ".some((each) => each.textContent.includes('cello'))")
        self.assertFalse([text for text in self.texts_of("ben") if text == "I keep bees."])

    def test_compare_asks_with_kv_and_with_text(self):
        self.keep("anna", "Anna parks on level 3.", "Anna has two cats.")
        page = self.page(user="anna")
        self.ask(page, "Where does Anna park?", "compare")
        self.assertEqual(page.texts(".pair h3"), ["Memory as KV", "Memory as text"])
        self.assertEqual(len(page.texts(".race strong")), 2)
        kv, _, _, text, _, _ = [int(each.replace(",", "")) for each in page.texts(".legend strong")]
        self.assertGreater(kv, 0)
        self.assertEqual(text, 0)
        self.assertEqual(len(self.texts_of("anna")), 2)
        page.click("#new-chat")
        self.assertEqual(page.texts(".turn"), [])

    def test_an_answer_can_be_stopped(self):
        page = self.page(user="anna")
        page.fill("#question", "Tell me everything.")
        page.key("Enter")
        page.wait("document.querySelector('.message.assistant .text')?.textContent.length > 5 ||"
                  "document.querySelector('.evidence-link')")
        if not page.texts(".evidence-link"):
            page.key("Escape")
            page.wait("document.querySelector('#stop').hidden")
        self.ask(page, "And now?")

    def test_errors_are_told_in_words(self):
        page = self.page(user="anna", expected_errors=["503", "429", "500", "Failed to load"])
        self.add(page, "Anna likes tea.")
        page.answer_next("*/v3/memories/search/*", 503, [("Retry-After", "2")])
        page.fill("#query", "tea")
        page.wait_text("#memories-notice", "The server is busy. Try again in 2 seconds.")
        self.assertEqual(page.run("document.querySelector('#memories-notice [role=alert]') !== null"), True)
        self.picture(page, "error")
        page.wait("!document.querySelector('#memories-notice button').disabled")
        page.click("#memories-notice button")
        page.wait("document.querySelector('#memories-count').textContent.includes('found')")
        self.assertEqual(page.texts("#memories-notice *"), [])

        page.answer_next("*/v1/chat/completions", 429, [("Retry-After", "1")])
        page.fill("#question", "Hello?")
        page.key("Enter")
        page.wait_text("#chat-notice", "Too many requests with this key. Try again in 1 second.")
        self.assertEqual(page.run("document.querySelector('#question').value"), "Hello?")
        page.wait("!document.querySelector('#chat-notice button').disabled")
        page.click("#chat-notice button")
        page.wait("document.querySelector('.evidence-link')")

        broken = 'data: {"choices":[{"delta":{"content":"Half"}}]}\n\n'
        page.answer_next("*/v1/chat/completions", 200, [("Content-Type", "text/event-stream")], broken)
        page.fill("#question", "And?")
        page.key("Enter")
        page.wait_text("#chat-notice", "broke off")
        said = {"error": {"message": "the prompt has 9 tokens too many", "code": "invalid_argument"}}
        page.answer_next("*/v1/chat/completions", 400, (), json.dumps(said))
        page.click("#chat-notice button")
        page.wait_text("#chat-notice", "The prompt has 9 tokens too many.")

    def test_narrow_windows_have_tabs_and_nothing_overflows(self):
        self.keep("anna", "Anna parks on level 3.", "x" * 300)
        for width in [360, 390, 800, 1280]:
            for dark in [False, True]:
                with self.subTest(width=width, dark=dark):
                    page = self.page(width, 800, user="anna", dark=dark)
                    name = f"{width}-{'dark' if dark else 'light'}"
                    tabs = width < 760
                    self.picture(page, f"{name}-memories")
                    if tabs:
                        page.click(".tabs [data-tab=chat]")
                    self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
                    self.ask(page, "Where does Anna park?", "compare")
                    self.picture(page, f"{name}-chat")
                    above = "document.querySelector('.message.%s').getBoundingClientRect().y"
                    self.assertTrue(page.run(f"{above % 'user'} < {above % 'assistant'}"))
                    self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
                    if tabs:
                        page.click(".evidence-link")
                        self.assertEqual(page.text(".tabs [aria-current]"), "Evidence")
                        self.picture(page, f"{name}-evidence")
                        self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
                    wide = page.run("[...document.querySelectorAll('main *')].filter((element) =>"
                                    "element.getBoundingClientRect().right > innerWidth + 1 &&"
                                    "element.checkVisibility() && !element.closest('.hidden'))"
                                    ".map((element) => element.outerHTML.slice(0, 80))")
                    self.assertEqual(wide, [])

    def test_the_keyboard_alone_is_enough_and_everything_has_a_name(self):
        self.keep("anna", "Anna likes tea.")
        page = self.page(user="anna")
        reached = set()
        page.run("document.body.focus()")
        for _ in range(40):
            page.key("Tab")
            reached.add(page.run("document.activeElement.id || document.activeElement.dataset.action"
                                 "|| document.activeElement.value || document.activeElement.tagName"))
            self.assertTrue(page.run("document.activeElement === document.body ||"
                                     "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
                                     "|| document.activeElement.name === 'mode'"))
        for name in ["user", "query", "new-memory", "infer", "edit", "history", "delete", "kv", "question",
                     "send", "remember", "key-button"]:
            self.assertIn(name, reached)
        page.call("Accessibility.enable")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "searchbox", "checkbox", "radio", "combobox", "link"}
        for node in nodes:
            if node.get("role", {}).get("value") in roles and not node.get("ignored"):
                self.assertTrue(node["name"]["value"].strip(), node)


class ConsoleKeys(ConsoleTest, ServeTest):
    ARGUMENTS = ("--require-key", "always")

    def test_a_key_is_asked_for_and_kept_in_the_tab_only(self):
        admin = {"Authorization": f"Bearer {self.server.ready['first_key']}"}
        made = self.server.json("POST", "/api-keys", {"user_id": "dora"}, admin, status=201)
        page = self.page(expected_errors=["401"])
        page.wait("document.querySelector('#key-dialog').open")
        self.assertEqual(page.text("#key-words"), "This server needs an API key.")
        self.picture(page, "key")
        self.use_key(page, "wrong", accepted=False)
        page.wait_text("#key-words", "does not accept this API key")
        page.wait("document.querySelector('#key-dialog').open")
        self.use_key(page, made["key"])
        page.wait("document.querySelector('#model').textContent")
        self.choose(page, "dora")
        self.add(page, "Dora dances.")
        self.assertEqual(self.texts_of("dora", admin), ["Dora dances."])
        self.assertEqual(page.run("localStorage.length + document.cookie.length"), 0)
        self.assertNotIn(made["key"], page.run("location.href + document.documentElement.outerHTML"))
        page.open(self.server.url)
        page.wait_text(".memory .text", "Dora dances.")
        page.click("#key-button")
        page.click("#key-forget")
        page.wait_text("#key-words", "This server needs an API key.")
        self.assertIsNone(page.run("sessionStorage.getItem('inferscale-api-key')"))


class ConsoleAway(ConsoleTest, CliTest):
    def test_a_server_that_has_gone_is_told(self):
        self.server = Server(self)
        self.addCleanup(self.server.stop)
        page = self.page(user="anna", expected_errors=["Failed to load"])
        self.server.stop()
        page.fill("#query", "tea")
        page.wait_text("#memories-notice", "The server cannot be reached.")


if __name__ == "__main__":
    serve_support.main()
