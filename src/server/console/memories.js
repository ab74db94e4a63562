// A user's memories: list, search, add, edit, delete, history.

import * as api from "./api.js";
import {$, announce, clearNotice, confirmed, make, plural, showError, showInfo, submitOnEnter,
        timeElement} from "./elements.js";

const kPageSize = 50;
const kTypingMs = 250;
const notice = $("memories-notice");

let user = "";
let page = 1;
let reading = null;  // the request under way; a later one replaces it
let onError = () => {};
let chooseUser = () => {};

const fail = (error, retry) => {
  if (error.name === "AbortError") return;
  showError(notice, error, retry);
  onError(error);
};

function showEmpty(title, words, ...more) {
  const empty = $("memories-empty");
  empty.replaceChildren(make("h3", {}, title), make("p", {}, words), ...more);
  empty.hidden = false;
}

/// Nobody is chosen yet: whom there is to choose from.
export async function showUsers() {
  user = "";
  reading?.abort();
  $("memories-tools").hidden = true;
  $("more").hidden = true;
  $("delete-all").hidden = true;
  $("memories-count").textContent = "";
  $("memory-list").replaceChildren();
  const chips = make("div", {class: "chips"});
  showEmpty("Choose a user",
            "Every memory belongs to someone. Type a user’s id at the top; a new id starts with nothing.",
            chips);
  try {
    const known = await api.users();
    if (user) return;
    clearNotice(notice);
    $("users").replaceChildren(...known.map((each) => make("option", {value: each.id})));
    chips.append(...known.slice(0, 12).map((each) => make(
      "button", {type: "button", onclick: () => chooseUser(each.id)}, make("bdi", {}, each.id),
      make("small", {}, each.total_memories.toLocaleString()))));
  } catch (error) {
    fail(error, showUsers);
  }
}

function item(memory) {
  const row = make("li", {class: "memory"});
  const show = () => {
    const meta = make("div", {class: "meta"}, timeElement(memory.updated_at ?? memory.created_at));
    if (memory.score !== undefined) {
      meta.append(make("span", {title: "How well it fits the search"}, `${Math.round(memory.score * 100)} %`));
    }
    if (memory.superseded_by) meta.append(make("span", {class: "badge"}, "superseded"));
    if (memory.expiration_date) meta.append(make("span", {class: "badge"}, `until ${memory.expiration_date}`));
    const button = (name, action, extra = "") =>
      make("button", {type: "button", class: `quiet ${extra}`, "data-action": name.toLowerCase(), onclick: action}, name);
    row.replaceChildren(
      make("p", {class: "text", dir: "auto"}, memory.memory), meta,
      make("div", {class: "actions"}, button("Edit", edit), button("History", () => showHistory(memory)),
           button("Delete", askDelete, "danger")));
  };
  const focus = (action) => row.querySelector(`[data-action="${action}"]`)?.focus();

  function edit() {
    const text = make("textarea", {rows: "3", "aria-label": "Text of the memory", dir: "auto"});
    text.value = memory.memory;
    const form = make("form", {class: "edit"}, text,
      make("div", {class: "row end"}, make("button", {type: "button", onclick: cancel}, "Cancel"),
           make("button", {type: "submit", class: "primary"}, "Save")));
    const save = async () => {
      if (!text.value.trim()) return text.focus();
      if (text.value === memory.memory) return cancel();
      form.inert = true;
      try {
        const changed = await api.update(memory.id, text.value);
        memory = {...memory, memory: changed.memory, updated_at: changed.updated_at};
        show();
        clearNotice(notice);
        focus("edit");
        announce("Memory changed");
      } catch (error) {
        form.inert = false;
        text.focus();
        fail(error, save);
      }
    };
    function cancel() {
      show();
      focus("edit");
    }
    form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
    form.addEventListener("keydown", (event) => { if (event.key === "Escape") cancel(); });
    submitOnEnter(text, save);
    row.replaceChildren(form);
    text.focus();
    text.setSelectionRange(text.value.length, text.value.length);
  }

  function askDelete() {
    const keep = () => { show(); focus("delete"); };
    const question = make("div", {class: "question", role: "group", "aria-label": "Delete this memory?"},
      make("span", {}, "Delete this memory?"),
      make("button", {type: "button", onclick: keep}, "Keep"),
      make("button", {type: "button", class: "danger-fill", "data-action": "confirm", onclick: destroy}, "Delete"));
    question.addEventListener("keydown", (event) => { if (event.key === "Escape") keep(); });
    row.querySelector(".actions").replaceWith(question);
    focus("confirm");
  }

  async function destroy() {
    row.inert = true;
    try {
      await api.remove(memory.id);
    } catch (error) {
      if (error.status !== 404) {
        row.inert = false;
        return fail(error, destroy);
      }
    }
    clearNotice(notice);
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next?.querySelector("[data-action]") ?? $("new-memory")).focus();
    announce("Memory deleted");
    // The list is right already; its count and what follows are not.
    if (!$("query").value.trim()) reload({keep: true});
    else if (!$("memory-list").children.length) reload();
  }

  show();
  return row;
}

const kEvents = {ADD: "Added", UPDATE: "Changed", DELETE: "Deleted", SUPERSEDE: "Superseded"};

async function showHistory(memory) {
  try {
    const rows = await api.history(memory.id);
    $("history-list").replaceChildren(...rows.map((row) => make("li", {},
      make("div", {class: "meta"}, make("strong", {}, kEvents[row.event] ?? row.event), timeElement(row.updated_at)),
      row.old_memory && row.old_memory !== row.new_memory ? make("del", {dir: "auto"}, row.old_memory) : null,
      row.new_memory ? make("p", {class: "text", dir: "auto"}, row.new_memory) : null)));
    $("history").showModal();
  } catch (error) {
    fail(error, () => showHistory(memory));
  }
}

function count(number, what) {
  $("memories-count").textContent = number ? what : "";
}

/// Shows the first page or what is searched for. \param keep the rows that are there: after a
/// deletion only what surrounds them changes.
export async function reload({keep = false} = {}) {
  if (!user) return;
  reading?.abort();
  const mine = (reading = new AbortController());
  const query = $("query").value.trim();
  const rows = $("memory-list");
  rows.setAttribute("aria-busy", "true");
  try {
    const answer = query ? await api.search(user, query, mine.signal)
                         : await api.list(user, 1, keep ? Math.max(rows.children.length, kPageSize) : kPageSize, mine.signal);
    if (mine !== reading) return;
    $("memories-empty").hidden = true;
    page = 1;
    if (!keep) rows.replaceChildren(...answer.results.map(item));
    const found = answer.results.length;
    const all = answer.count ?? found;
    count(all, query ? `${found} found` : all.toLocaleString());
    $("more").hidden = Boolean(query) || rows.children.length >= all;
    $("delete-all").hidden = Boolean(query) || all === 0;
    if (!found && query) {
      showEmpty("Nothing fits", `No memory of ${user} fits “${query}”. Try other words, or fewer.`);
    } else if (!found) {
      showEmpty(`Nothing is remembered of ${user} yet`,
                "Add a memory above, or start to chat: what is said is remembered.");
    }
    if (query) announce(found ? `${plural(found, "memory", "memories")} found` : "Nothing found");
    if (!keep) clearNotice(notice);
  } catch (error) {
    fail(error, () => reload({keep}));
  } finally {
    if (mine === reading) rows.removeAttribute("aria-busy");
  }
}

/// Reads the list again, unless somebody is at work in it.
export function refresh() {
  const busy = $("memory-list").querySelector("form, .question") || $("memory-list").contains(document.activeElement);
  if (!busy && !$("query").value.trim() && page === 1) reload();
}

async function showMore() {
  const owner = user;
  $("more").disabled = true;
  try {
    const answer = await api.list(owner, page + 1, kPageSize);
    if (owner !== user) return;
    page += 1;
    const rows = answer.results.map(item);
    $("memory-list").append(...rows);
    $("more").hidden = page * kPageSize >= answer.count;
    rows[0]?.querySelector("[data-action]")?.focus();
  } catch (error) {
    fail(error, showMore);
  } finally {
    $("more").disabled = false;
  }
}

async function addMemory() {
  const text = $("new-memory");
  if (!text.value.trim()) return text.focus();
  const infer = $("infer").checked;
  const button = $("add-form").querySelector("button");
  button.disabled = true;
  button.textContent = infer ? "Extracting…" : "Adding…";
  try {
    const answer = await api.add(user, text.value, infer);
    const fresh = answer.results.filter((row) => row.event === "ADD").length;
    text.value = "";
    $("query").value = "";
    await reload();
    if (fresh) announce(`${plural(fresh, "memory", "memories")} added`);
    else showInfo(notice, answer.results.length ? "This is remembered already." : "Nothing to remember was found in it.");
  } catch (error) {
    fail(error, addMemory);
  } finally {
    button.disabled = false;
    button.textContent = "Add";
    text.focus();
  }
}

async function deleteAll() {
  const owner = user;
  const agreed = await confirmed(`Delete all memories of ${owner}?`,
    "They are deleted together with their embeddings and KV. This cannot be undone.", "Delete all");
  if (!agreed) return;
  try {
    await api.removeAll(owner);
    if (owner === user) await reload();
    announce("All memories deleted");
  } catch (error) {
    fail(error, deleteAll);
  }
}

export function setUser(id) {
  user = id;
  $("query").value = "";
  $("memories-tools").hidden = false;
  $("memories-empty").hidden = true;
  $("memory-list").replaceChildren();
  return reload();
}

/// \param hooks onError(error) for errors that concern the whole page; chooseUser(id)
export function start(hooks) {
  ({onError, chooseUser} = hooks);
  let typing;
  $("query").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(reload, kTypingMs);
  });
  $("query").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !$("query").value) return;
    event.preventDefault();
    $("query").value = "";
    clearTimeout(typing);
    reload();
  });
  $("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    reload();
  });
  $("add-form").addEventListener("submit", (event) => { event.preventDefault(); addMemory(); });
  submitOnEnter($("new-memory"), addMemory);
  $("more").addEventListener("click", showMore);
  $("delete-all").addEventListener("click", deleteAll);
}
