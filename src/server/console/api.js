// The server's API: Mem0's calls for memories, OpenAI's for the chat.

const kKey = "inferscale-api-key";

/// The key lives as long as the tab: nothing of it reaches the disk's local storage.
export const apiKey = () => sessionStorage.getItem(kKey) ?? "";
export const setApiKey = (key) => (key ? sessionStorage.setItem(kKey, key) : sessionStorage.removeItem(kKey));

const seconds = (count) => `${count} second${count === 1 ? "" : "s"}`;

/// What went wrong, as a sentence.
export class ApiError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
    this.mayRetry = status === 0 || status === 408 || status === 429 || status >= 500;
  }
}

function sentence(text) {
  const words = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(words) ? words : words + ".";
}

async function errorOf(response) {
  let said = "";
  try {
    const body = await response.json();
    said = typeof body.detail === "string" ? body.detail : body.error?.message ?? "";
  } catch {
    // Not JSON: a proxy's answer, told by its status.
  }
  const after = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  const wait = Number.isFinite(after) && after > 0 ? after : undefined;
  const again = wait ? `Try again in ${seconds(wait)}.` : "Try again in a moment.";
  switch (response.status) {
    case 401:
      return new ApiError(apiKey() ? "The server does not accept this API key."
                                   : "This server needs an API key.", 401);
    case 429:
      return new ApiError(`Too many requests with this key. ${again}`, 429, wait);
    case 503:
      return new ApiError(`The server is busy. ${again}`, 503, wait);
    default:
      return new ApiError(said ? sentence(said) : `The server answered with status ${response.status}.`,
                          response.status, wait);
  }
}

async function send(method, path, body, signal) {
  const headers = {Accept: "application/json, text/event-stream"};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Check that it is still running.", 0);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

const json = async (...request) => (await send(...request)).json();
const memoryPath = (id) => `/v1/memories/${encodeURIComponent(id)}/`;

export async function users() {
  const answer = await json("GET", "/v1/entities/");
  return answer.results.filter((entity) => entity.type === "user");
}

export const models = async () => (await json("GET", "/v1/models")).data.map((model) => model.id);

export const list = (user, page, size, signal) =>
  json("POST", `/v3/memories/?page=${page}&page_size=${size}`, {filters: {user_id: user}}, signal);

export const search = (user, query, signal) =>
  json("POST", "/v3/memories/search/", {query, filters: {user_id: user}, top_k: 20}, signal);

export const add = (user, text, infer) =>
  json("POST", "/v3/memories/add/",
       {messages: [{role: "user", content: text}], user_id: user, infer, async_mode: false});

export const update = (id, text) => json("PUT", memoryPath(id), {text});
export const remove = (id) => json("DELETE", memoryPath(id));
export const history = (id) => json("GET", memoryPath(id) + "history/");
export const removeAll = (user) => json("DELETE", `/v1/memories/?user_id=${encodeURIComponent(user)}`);

/// The data of each server-sent event of a response's body.
async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let waiting = "";
  try {
    while (true) {
      let chunk;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection broke off before the answer was complete.", 0);
      }
      if (chunk.done) return;
      waiting += decoder.decode(chunk.value, {stream: true});
      let end;
      while ((end = waiting.indexOf("\n\n")) >= 0) {
        const line = waiting.slice(0, end);
        waiting = waiting.slice(end + 2);
        if (line.startsWith("data: ")) yield line.slice("data: ".length);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/// Streams an answer: onText for every piece. Returns {memory, usage}.
export async function chat(request, onText, signal) {
  const response = await send("POST", "/v1/chat/completions",
    {...request, model: "any", stream: true, stream_options: {include_usage: true}}, signal);
  const result = {};
  for await (const data of events(response)) {
    if (data === "[DONE]") return result;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(sentence(chunk.error.message), 500);
    const text = chunk.choices?.[0]?.delta?.content;
    if (text) onText(text);
    if (chunk.memory) result.memory = chunk.memory;
    if (chunk.usage) result.usage = chunk.usage;
  }
  throw new ApiError("The connection broke off before the answer was complete.", 0);
}
