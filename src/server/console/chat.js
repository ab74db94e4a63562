// The chat, and what was behind each answer.

import * as api from "./api.js";
import {$, announce, clearNotice, make, plural, showError, submitOnEnter} from "./elements.js";

const kMaxTokens = 512;
const kModes = {kv: "Memory as KV", text: "Memory as text", off: "Without memory"};
const kReasons = {
  no_owner: "No user was chosen: no memory was used",
  not_ready: "KV not ready yet: computed instead",
  evicted: "KV evicted: computed instead",
  corrupt: "KV damaged: computed instead",
  not_contiguous: "Behind something that was computed: computed as well",
  over_budget: "No room left in the prompt: left out",
  template: "The model’s template has no place for memories: left out",
  accuracy_gate: "KV of this model failed the accuracy check: served as text",
  model_unsupported: "KV of this model cannot be moved: served as text",
};

let user = "";
let said = [];       // the conversation as the model sees it
let running = null;  // AbortController of the answer under way
let onError = () => {};
let onRemembered = () => {};
let onEvidence = () => {};

const mode = () => document.querySelector("input[name=mode]:checked").value;
const milliseconds = (number) =>
  number >= 1000 ? `${(number / 1000).toFixed(2)} s` : number >= 100 ? `${Math.round(number)} ms` : `${number.toFixed(1)} ms`;

function showWelcome() {
  $("log").replaceChildren(make("div", {class: "empty"},
    make("h3", {}, user ? `Talk with what is known of ${user}` : "A model with a memory"),
    make("p", {}, user
      ? "Each question brings the memories that fit it. Choose above how they reach the model."
      : "Choose a user, and each question brings the memories that fit it. Without one the model answers from the conversation alone."),
    make("ul", {class: "ways"},
      ...[["KV", "Injected as attention KV, computed once when they were stored."],
          ["Text", "Put into the prompt, and computed again for each question."],
          ["Compare", "Both, one after the other, with the time to the first token."]]
        .map(([name, words]) => make("li", {}, make("strong", {}, name), words)))));
  $("new-chat").hidden = true;
}

function showNoEvidence() {
  $("evidence-body").replaceChildren(make("div", {class: "empty"},
    make("p", {}, "After an answer this shows which memories went into it, how many tokens were injected instead of computed, and how long the first token took.")));
}

/// A bar of parts in proportion, with their numbers as words.
function tokenBar(memory) {
  const parts = [["injected", memory.injected_tokens], ["reused", memory.reused_tokens], ["computed", memory.computed_tokens]];
  const bar = make("div", {class: "bar-track", "aria-hidden": "true"});
  const legend = make("ul", {class: "legend"});
  for (const [name, tokens] of parts) {
    const piece = make("span", {class: `fill ${name}`});
    piece.style.flexGrow = String(tokens);
    if (tokens > 0) bar.append(piece);
    legend.append(make("li", {}, make("span", {class: `dot ${name}`, "aria-hidden": "true"}),
                       make("span", {}, name), make("strong", {}, tokens.toLocaleString())));
  }
  return make("div", {class: "tokens"}, bar, legend);
}

function comparison(answers) {
  const [kv, text] = answers.map((answer) => answer.memory.ttft_ms);
  const ratio = text / kv;
  const words = ratio >= 1.05 ? `The first token came ${ratio.toFixed(1)} times sooner with KV`
    : ratio <= 0.95 ? `The first token came ${(1 / ratio).toFixed(1)} times sooner with text`
    : "Both were equally quick";
  const rows = answers.map((answer) => {
    const fill = make("span", {class: `fill ${answer.mode}`});
    fill.style.width = `${Math.max(2, 100 * answer.memory.ttft_ms / Math.max(kv, text))}%`;
    return make("div", {class: "race"}, make("span", {}, kModes[answer.mode]),
                make("strong", {}, milliseconds(answer.memory.ttft_ms)),
                make("div", {class: "bar-track", "aria-hidden": "true"}, fill));
  });
  return make("section", {class: "card"}, make("h3", {}, "Time to first token"), ...rows, make("p", {class: "note"}, words + "."));
}

function reasons(memory) {
  const list = (memory.fallback ?? []).filter((each) => each.reason !== "text_mode");
  if (!list.length) return null;
  return make("ul", {class: "reasons"}, ...list.map((each) => make("li", {},
    (kReasons[each.reason] ?? each.reason) + (each.count > 1 ? ` (${each.count.toLocaleString()})` : ""))));
}

function showEvidence(answers) {
  const body = $("evidence-body");
  const parts = [];
  if (answers.length === 2) {
    parts.push(comparison(answers));
    for (const answer of answers) {
      parts.push(make("section", {class: "card"}, make("h3", {}, `Tokens of the prompt, ${answer.mode === "kv" ? "KV" : "text"}`),
                      tokenBar(answer.memory), reasons(answer.memory)));
    }
  } else {
    const [{memory, mode: how}] = answers;
    parts.push(make("section", {class: "card"}, make("h3", {}, "Time to first token"),
      make("p", {class: "figure"}, milliseconds(memory.ttft_ms)), make("p", {class: "note"}, kModes[how])));
    parts.push(make("section", {class: "card"}, make("h3", {}, "Tokens of the prompt"), tokenBar(memory), reasons(memory)));
  }
  const {facts} = answers[0].memory;
  parts.push(make("section", {class: "card"},
    make("h3", {}, facts.length ? plural(facts.length, "memory", "memories") : "No memories"),
    facts.length
      ? make("ol", {class: "facts"}, ...facts.map((fact) => make("li", {}, make("p", {class: "text", dir: "auto"}, fact.memory),
          make("small", {title: "How well it fits the question"}, `${Math.round(fact.score * 100)} %`))))
      : make("p", {class: "note"}, "The model answered from the conversation alone.")));
  body.replaceChildren(...parts);
  for (const button of document.querySelectorAll(".evidence-link")) {
    button.setAttribute("aria-pressed", String(button.answers === answers));
  }
}

function bubble(role, text = "") {
  const words = make("p", {class: "text", dir: "auto"}, text);
  return {words, element: make("div", {class: `message ${role}`}, make("span", {class: "hidden"}, role === "user" ? "You: " : "Answer: "), words)};
}

function scrollDown() {
  const log = $("log");
  log.scrollTop = log.scrollHeight;
}

/// Asks once and fills an element as the answer comes.
async function answerInto(place, how, remember, signal, temperature) {
  const log = $("log");
  let text = "";
  place.words.classList.add("writing");
  try {
    const result = await api.chat({
      messages: said, max_tokens: kMaxTokens, temperature,
      ...(user ? {user_id: user} : {}),
      memory: {mode: how, ...(user ? {remember: remember && how !== "off"} : {})},
    }, (piece) => {
      const following = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      text += piece;
      place.words.textContent = text;
      if (following) scrollDown();
    }, signal);
    if (!text) place.words.textContent = "(The model said nothing.)";
    return {text, mode: how, memory: result.memory};
  } finally {
    place.words.classList.remove("writing");
  }
}

function evidenceLink(answers) {
  const [{memory}] = answers;
  const words = answers.length === 2
    ? `KV ${milliseconds(memory.ttft_ms)} · text ${milliseconds(answers[1].memory.ttft_ms)}`
    : `${milliseconds(memory.ttft_ms)} to first token · ${plural(memory.facts.length, "memory", "memories")}`;
  const button = make("button", {type: "button", class: "evidence-link quiet", onclick: () => { showEvidence(answers); onEvidence(); }}, words);
  button.answers = answers;
  return button;
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("log").setAttribute("aria-busy", String(busy));
}

async function ask(question) {
  clearNotice($("chat-notice"));
  const chosen = mode();
  const compare = chosen === "compare";
  const remember = $("remember").checked && !compare;
  const mine = (running = new AbortController());
  setBusy(true);
  if (!said.length) $("log").replaceChildren();
  $("new-chat").hidden = false;
  said.push({role: "user", content: question});
  const turn = make("div", {class: "turn"}, bubble("user", question).element);
  const places = (compare ? ["kv", "text"] : [chosen]).map((how) => ({...bubble("assistant"), how}));
  const row = make("div", {class: compare ? "pair" : ""}, ...places.map((place) => {
    if (compare) place.element.prepend(make("h3", {}, kModes[place.how]));
    return place.element;
  }));
  turn.append(row);
  $("log").append(turn);
  scrollDown();
  const answers = [];
  try {
    // One after the other: at once they would wait for each other. KV first, so that whatever has
    // to warm up counts against it.
    for (const place of places) {
      answers.push(await answerInto(place, place.how, remember, mine.signal, compare ? 0 : 0.6));
    }
    said.push({role: "assistant", content: answers[0].text});
    turn.append(evidenceLink(answers));
    showEvidence(answers);
    announce("The answer is complete");
    if (remember && user && chosen !== "off") onRemembered();
  } catch (error) {
    if (mine !== running) return;  // the conversation has gone
    const begun = answers[0]?.text ?? places[0].words.textContent;
    if (error.name === "AbortError" && begun) {
      said.push({role: "assistant", content: begun});
      turn.append(make("p", {class: "note"}, "Stopped."));
    } else {
      said.pop();
      turn.remove();
      if (!said.length) showWelcome();
      if (!$("question").value) setQuestion(question);
    }
    if (error.name !== "AbortError") {
      showError($("chat-notice"), error, submit);
      onError(error);
    }
  } finally {
    if (mine === running) {
      running = null;
      setBusy(false);
      scrollDown();
    }
  }
}

function setQuestion(text) {
  $("question").value = text;
  fitQuestion();
}

function fitQuestion() {
  const area = $("question");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 200)}px`;
}

function submit() {
  const question = $("question").value.trim();
  if (running) return;
  if (!question) return $("question").focus();
  setQuestion("");
  ask(question);
}

function newChat() {
  running?.abort();
  running = null;
  setBusy(false);
  said = [];
  clearNotice($("chat-notice"));
  showWelcome();
  showNoEvidence();
}

export function setUser(id) {
  user = id;
  newChat();
}

/// \param hooks onError(error); onRemembered() when a turn will become memories; onEvidence() when
/// somebody wants to see what was behind an answer
export function start(hooks) {
  ({onError, onRemembered, onEvidence} = hooks);
  $("ask-form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  submitOnEnter($("question"), submit);
  $("question").addEventListener("input", fitQuestion);
  $("stop").addEventListener("click", () => { running?.abort(); $("question").focus(); });
  $("chat").addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
  $("new-chat").addEventListener("click", () => { newChat(); $("question").focus(); });
  for (const input of document.querySelectorAll("input[name=mode]")) {
    input.addEventListener("change", () => { $("remember").disabled = mode() === "compare" || mode() === "off"; });
  }
  showWelcome();
  showNoEvidence();
}
