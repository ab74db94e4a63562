// Making elements and telling people what happened. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);

/// An element: make("p", {class: "x", onclick: f}, "text", child). Nothing is parsed as HTML.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/// Tells screen readers what sighted people see.
export function announce(text) {
  $("status").textContent = "";
  // A change is announced, the same text twice is not.
  requestAnimationFrame(() => { $("status").textContent = text; });
}

export const plural = (count, one, many = one + "s") => `${count.toLocaleString()} ${count === 1 ? one : many}`;

export function timeElement(iso) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return document.createTextNode(iso ?? "");
  const words = date.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});
  return make("time", {datetime: iso}, words);
}

export const clearNotice = (place) => {
  clearInterval(place.timer);
  place.replaceChildren();
};

/// Shows an error in words, with a button to try again once the server wants to be asked again.
export function showError(place, error, retry) {
  clearNotice(place);
  const box = make("div", {class: "notice error"}, make("p", {role: "alert"}, error.message));
  if (retry && error.mayRetry) {
    const button = make("button", {type: "button", onclick: () => { clearNotice(place); retry(); }});
    let seconds = error.retryAfter ?? 0;
    const tell = () => {
      button.disabled = seconds > 0;
      button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
      if (seconds-- <= 0) clearInterval(place.timer);
    };
    place.timer = setInterval(tell, 1000);
    tell();
    box.append(button);
  }
  box.append(make("button", {type: "button", class: "quiet", onclick: () => clearNotice(place)}, "Dismiss"));
  place.append(box);
}

export function showInfo(place, text) {
  clearNotice(place);
  place.append(make("div", {class: "notice"}, make("p", {}, text),
    make("button", {type: "button", class: "quiet", onclick: () => clearNotice(place)}, "Dismiss")));
  announce(text);
}

/// Resolves to whether the person agreed.
export function confirmed(title, words, yes) {
  $("confirm-title").textContent = title;
  $("confirm-words").textContent = words;
  $("confirm-yes").textContent = yes;
  const dialog = $("confirm");
  const form = dialog.querySelector("form");
  dialog.showModal();
  // Not on "close": that comes later, and would answer the next question if it is asked by then.
  return new Promise((resolve) => {
    const end = (agreed) => {
      form.removeEventListener("submit", submitted);
      dialog.removeEventListener("cancel", cancelled);
      resolve(agreed);
    };
    const submitted = (event) => end(event.submitter?.value === "yes");
    const cancelled = () => end(false);
    form.addEventListener("submit", submitted);
    dialog.addEventListener("cancel", cancelled);
  });
}

/// Enter sends, Shift+Enter makes a line, also while an input method composes nothing.
export function submitOnEnter(textarea, submit) {
  textarea.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
}
