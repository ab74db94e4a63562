#!/usr/bin/env python3
"""The Model Context Protocol's own client against the running service."""

import asyncio
import contextlib
import json

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

import serve_support
from serve_support import Server, ServeTest

UNICODE = "Grüße 🌊 — 東京\t\"quoted\" 'x' \\ <b>&amp; مرحبا"
TOOLS = ["add_memory", "search_memories", "get_memories", "get_memory", "update_memory",
         "delete_memory", "delete_all_memories", "list_entities", "delete_entities"]


@contextlib.asynccontextmanager
async def connected(url, mode, headers=None):
    """A client that speaks an era of the protocol: "legacy" shakes hands, "auto" asks first."""
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(url + "/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode) as client:
            yield client


class McpClient(ServeTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.server.json, "POST", "/reset")

    def with_client(self, use, mode="auto", headers=None):
        async def run():
            async with connected(self.server.url, mode, headers) as client:
                return await use(client)

        return asyncio.run(run())

    async def done(self, client, tool, **arguments):
        """What a tool answers that must succeed; the client checks it by the tool's schema."""
        result = await client.call_tool(tool, arguments)
        self.assertFalse(result.is_error, result.content)
        self.assertEqual(json.loads(result.content[0].text), result.structured_content)
        return result.structured_content

    async def refused(self, client, tool, **arguments):
        result = await client.call_tool(tool, arguments)
        self.assertTrue(result.is_error, result.content)
        return result.content[0].text

    def test_both_eras_of_the_protocol(self):
        async def use(client):
            listed = await client.list_tools()
            return (client.protocol_version, client.server_info.name,
                    [tool.name for tool in listed.tools])

        self.assertEqual(self.with_client(use, "legacy"), ("2025-11-25", "inferscale", TOOLS))
        self.assertEqual(self.with_client(use, "auto"), ("2026-07-28", "inferscale", TOOLS))

    def test_every_tool(self):
        async def use(client):
            added = await self.done(client, "add_memory", text=UNICODE, user_id="anna", infer=False,
                                    metadata={"näme": UNICODE})
            memory_id = added["results"][0]["id"]
            self.assertEqual(added["results"][0]["memory"], UNICODE)
            await self.done(client, "add_memory", text="The train leaves at nine.", user_id="anna")
            await self.done(client, "add_memory", text="Ben has a boat.", user_id="ben")
            memory = await self.done(client, "get_memory", memory_id=memory_id)
            self.assertEqual((memory["memory"], memory["metadata"]), (UNICODE, {"näme": UNICODE}))
            found = await self.done(client, "search_memories", query="when does the train leave?",
                                    filters={"user_id": "anna"}, limit=1)
            self.assertEqual([item["memory"] for item in found["results"]],
                             ["The train leaves at nine."])
            page = await self.done(client, "get_memories", filters={"AND": [{"user_id": "anna"}]},
                                   page=2, page_size=1)
            self.assertEqual((page["count"], page["results"][0]["id"]), (2, memory_id))
            changed = await self.done(client, "update_memory", memory_id=memory_id, text="Tea.")
            self.assertEqual(changed["memory"], "Tea.")
            await self.done(client, "delete_memory", memory_id=memory_id)
            self.assertIn("not found", await self.refused(client, "get_memory", memory_id=memory_id))
            owners = await self.done(client, "list_entities")
            self.assertEqual({item["id"] for item in owners["results"]}, {"anna", "ben"})
            await self.done(client, "delete_all_memories", user_id="anna")
            await self.done(client, "delete_entities", user_id="ben")
            owners = await self.done(client, "list_entities")
            self.assertEqual(owners["results"], [])

        for mode in ["legacy", "auto"]:
            with self.subTest(mode):
                self.with_client(use, mode)

    def test_the_connections_user_and_errors(self):
        async def use(client):
            await self.done(client, "add_memory", text="Carol paints.")
            listed = await self.done(client, "get_memories")
            self.assertEqual([item["user_id"] for item in listed["results"]], ["carol"])
            self.assertIn("query", await self.refused(client, "search_memories"))
            self.assertIn("colour", await self.refused(
                client, "search_memories", query="x", filters={"user_id": "a", "colour": "red"}))
            with self.assertRaises(mcp.MCPError) as raised:
                await client.call_tool("rm", {})
            self.assertEqual(raised.exception.code, -32602)

        self.with_client(use, headers={"X-Inferscale-User": "carol"})

    def test_pages_of_other_sites_are_refused(self):
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for headers in [{"Origin": "https://evil.example"}, {"Host": "evil.example:8420"}]:
            self.server.json("POST", "/mcp", ping, headers, status=403)
        self.server.json("POST", "/mcp", ping, {"Origin": self.server.url})
        status, headers, _ = self.server.request("GET", "/mcp")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        status, _, body = self.server.request("POST", "/mcp", {"jsonrpc": "2.0", "method": "x"})
        self.assertEqual((status, body), (202, b""))


class McpKeys(ServeTest):
    ARGUMENTS = ("--require-key", "always")

    def test_a_key_opens_its_owners_memories_alone(self):
        first = self.server.ready["first_key"]
        admin = {"Authorization": f"Bearer {first}"}
        made = self.server.json("POST", "/api-keys", {"user_id": "dora"}, admin, status=201)
        self.server.json("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, status=401)

        async def run():
            bound = {"Authorization": f"Bearer {made['key']}"}
            async with connected(self.server.url, "legacy", bound) as client:
                await client.call_tool("add_memory", {"text": "Dora dances.", "infer": False})
                spoofed = await client.call_tool("add_memory", {"text": "x", "user_id": "eve"})
                self.assertTrue(spoofed.is_error)
            async with connected(self.server.url, "legacy", admin) as client:
                owners = await client.call_tool("list_entities", {})
                self.assertEqual([item["id"] for item in owners.structured_content["results"]],
                                 ["dora"])
            with self.assertRaises(Exception):
                async with connected(self.server.url, "legacy") as client:
                    await client.list_tools()

        asyncio.run(run())


if __name__ == "__main__":
    serve_support.main()
