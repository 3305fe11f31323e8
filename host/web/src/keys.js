// The keys, which work from inside the box too, and the list of them.
import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { approvals, choose, open, panel, sessions, sheet } from "./state.js";
import { t } from "./strings.js";

/** Put the cursor where one types; not on a phone, whose keyboard would cover half of what is to be read. */
export function toMessage() {
  if (matchMedia("(hover: hover)").matches) document.getElementById("message")?.focus();
}

/** Go to a question, in whichever session it waits. */
export function goTo({ id, session }) {
  if (document.getElementById(id) === null) choose(session);
  const look = (left) => {
    const card = document.getElementById(id);
    if (card) card.focus();
    else if (left) setTimeout(look, 100, left - 1);
  };
  look(30);
}

/** Go to the next question after that which has the focus. */
export function goToQuestion() {
  const all = approvals.value;
  const next = all[(all.findIndex((one) => one.id === document.activeElement?.id) + 1) % all.length];
  if (next) goTo(next);
}

function neighbour(step) {
  const all = sessions.value;
  const at = all.findIndex((row) => row.id === open.value?.id);
  const next = all[at < 0 ? 0 : at + step];
  if (next) choose(next.id);
}

// With Alt, by the place of the key: a Mac writes other letters with it.
const WITH_ALT = {
  KeyQ: goToQuestion,
  KeyN: () => choose(null),
  KeyK: () => document.querySelector(".sessions input")?.focus(),
  KeyM: () => document.querySelector(".picker.model button")?.click(),
  KeyG: () => document.querySelector("select.who")?.focus(),
  ArrowUp: () => neighbour(-1),
  ArrowDown: () => neighbour(1),
};

export function useKeys() {
  useEffect(() => {
    let before = "";
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      const withAlt = event.altKey && !event.ctrlKey && !event.metaKey && !document.querySelector("dialog[open]") && WITH_ALT[event.code];
      if (withAlt) {
        event.preventDefault();
        withAlt();
      } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        if (before === "g" && event.key === "a") goToQuestion();
        if (event.key === "?") sheet.value = "keys";
      }
      if (event.key === "Escape" && panel.value && !event.target.closest?.("dialog, .composer, .menu")) panel.value = "";
      before = typing ? "" : event.key;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

const KEYS = [
  ["keysBox", [["Enter", "send"], ["Shift Enter", "newLine"], ["/", "commands"], ["@", "files"], ["↑", "lastMessage"], ["Esc", "stop"], ["?", "keys"]]],
  ["keysAll", [["Alt Q", "question"], ["Alt N", "new"], ["Alt K", "search"], ["Alt ↑", "before"], ["Alt ↓", "after"], ["Alt M", "model"], ["Alt G", "who_answers"]]],
  ["keysQuestion", [["O", "once"], ["A", "always"], ["E", "exact"], ["R", "refuse"], ["S", "stop"], ["1 – 9", "choices"]]],
];

/** The list that `?` shows. */
export const Keys = () => KEYS.map(([name, rows]) => html`
  <h2>${t(name)}</h2>
  <dl class="keys">${rows.map(([keys, words]) => html`<dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${t(words)}</dd>`)}</dl>`);
