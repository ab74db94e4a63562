// Joins the page's parts: who is chosen, the API key, the tabs of a narrow window.

import * as api from "./api.js";
import * as chat from "./chat.js";
import {$, announce} from "./elements.js";
import * as memories from "./memories.js";

const kUser = "inferscale-user";
const kRememberedMs = 1500;

let user = "";

function chooseUser(id) {
  id = id.trim();
  if (/\s/.test(id)) {
    $("user").setCustomValidity("A user’s id has no spaces");
    $("user").reportValidity();
    return;
  }
  $("user").value = id;
  if (id === user) return;
  user = id;
  sessionStorage.setItem(kUser, id);
  chat.setUser(id);
  if (!id) {
    memories.showUsers();
    return;
  }
  memories.setUser(id);
  announce(`User ${id}`);
}

function openKeyDialog(words) {
  if ($("key-dialog").open) return;
  $("key-words").textContent = words;
  $("key").value = "";
  $("key-forget").hidden = !api.apiKey();
  $("key-dialog").showModal();
  $("key").focus();
}

function showKeyState() {
  $("key-button").classList.toggle("set", Boolean(api.apiKey()));
  $("key-button").title = api.apiKey() ? "An API key is in use" : "No API key is in use";
}

async function showModel() {
  try {
    $("model").textContent = (await api.models())[0] ?? "";
  } catch (error) {
    $("model").textContent = "";
    onError(error);
  }
}

function onError(error) {
  if (error.status === 401) openKeyDialog(error.message);
}

function useKey(key) {
  api.setApiKey(key);
  showKeyState();
  $("key-dialog").close();
  showModel();
  if (user) memories.setUser(user);
  else memories.showUsers();
}

function showTab(name) {
  document.querySelector("main").dataset.tab = name;
  for (const button of document.querySelectorAll(".tabs button")) {
    if (button.dataset.tab === name) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

$("user").addEventListener("input", () => $("user").setCustomValidity(""));
$("user").addEventListener("change", () => chooseUser($("user").value));
$("user-form").addEventListener("submit", (event) => {
  event.preventDefault();
  chooseUser($("user").value);
});
$("key-button").addEventListener("click", () =>
  openKeyDialog(api.apiKey() ? "A key is in use. Another one replaces it."
                             : "Needed when the server was told to ask for one; on this machine usually not."));
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("key").value.trim()) useKey($("key").value.trim());
});
$("key-cancel").addEventListener("click", () => $("key-dialog").close());
$("key-forget").addEventListener("click", () => useKey(""));
for (const button of document.querySelectorAll(".tabs button")) {
  button.addEventListener("click", () => showTab(button.dataset.tab));
}

memories.start({onError, chooseUser});
chat.start({
  onError,
  onRemembered: () => setTimeout(memories.refresh, kRememberedMs),
  onEvidence: () => {
    if (matchMedia("(max-width: 759px)").matches) showTab("evidence");
  },
});
showKeyState();
showModel();
const remembered = sessionStorage.getItem(kUser);
if (remembered) chooseUser(remembered);
else memories.showUsers();
