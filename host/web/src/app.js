// The whole: the list, the session, what stands beside it, and what is said about all of it.
import { useEffect } from "preact/hooks";
import { at, send } from "./api.js";
import { Composer, Start } from "./composer.js";
import { ask, Dialog } from "./dialog.js";
import { html } from "./html.js";
import { Panel, PANELS } from "./panels.js";
import { Sessions } from "./sessions.js";
import { Sheet } from "./sheet.js";
import { approvals, choose, listSessions, notice, online, open, panel, sessions, tell } from "./state.js";
import { t } from "./strings.js";
import { Transcript } from "./transcript.js";

/** What stands there until a link lets this browser in: it may be pasted here as well as into the address. */
export const Locked = ({ why }) => html`
  <main class="locked"><h1>Moryflow</h1>${why && html`<p class="problem" role="alert">${why}</p>`}<p>${t("noToken")}</p>
    <form onSubmit=${(event) => { event.preventDefault(); location.hash = `code=${event.target.link.value.trim().split("code=").at(-1)}`; }}>
      <input name="link" aria-label=${t("link")} placeholder=${t("link")} autocomplete="off" autofocus required /> <button class="primary">${t("enter")}</button></form></main>`;

/** g a goes to the question that waits. */
function useKeys() {
  useEffect(() => {
    let before = "";
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (!typing && !event.ctrlKey && !event.metaKey && before === "g" && event.key === "a") goToQuestion();
      if (event.key === "Escape" && panel.value && !event.target.closest?.("dialog, .composer")) panel.value = "";
      before = typing ? "" : event.key;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export function goToQuestion() {
  const [first] = approvals.value;
  if (!first) return;
  if (document.getElementById(first.id) === null) choose(first.session);
  const look = (left) => {
    const card = document.getElementById(first.id);
    if (card) card.focus();
    else if (left) setTimeout(look, 100, left - 1);
  };
  look(30);
}

export function App() {
  useKeys();
  const shown = open.value;
  const waiting = approvals.value.length;
  return html`
    <a class="skip" href="#message" onClick=${(event) => { event.preventDefault(); document.getElementById("message")?.focus(); }}>${t("toMessage")}</a>
    <div class="said" role="status">
      ${!online.value && html`<p class="offline">${t("offline")}</p>`}
      ${waiting > 0 && html`<p class="asking"><button onClick=${goToQuestion}>${waiting === 1 ? t("question") : `${t("questions")}: ${waiting}`} <kbd>g</kbd> <kbd>a</kbd></button></p>`}
      ${notice.value && html`<p class="notice"><span>${notice.value}</span> <button aria-label=${t("close")} onClick=${() => (notice.value = "")}>×</button></p>`}
    </div>
    <div class=${`app ${shown ? "has-session" : ""} ${panel.value && shown ? "has-panel" : ""}`}>
      <${Sessions} />
      <main>
        ${shown ? html`<${Header} shown=${shown} key=${`h${shown.id}`} /><${Transcript} shown=${shown} key=${shown.id} /><${Composer} shown=${shown} key=${`c${shown.id}`} />` : html`<${Start} />`}
      </main>
      ${panel.value && shown && html`<${Panel} shown=${shown} />`}
    </div>
    <${Sheet} />
    <${Dialog} />
  `;
}

function Header({ shown }) {
  const row = shown.row.value;
  if (!row) return null;
  const { title } = sessions.value.find((one) => one.id === shown.id) ?? row;
  const rename = async () => {
    const chosen = await ask(t("title"), title);
    if (!chosen) return;
    await patch(shown, { title: chosen });
    await listSessions().catch(tell);
  };
  return html`
    <header class="session-head">
      <button class="back" aria-label=${t("sessions")} onClick=${() => choose(null)}>‹</button>
      <h1><button class="plain" title=${t("rename")} onClick=${rename}>${title || row.id}</button></h1>
      <span class="vault" title=${row.vault}>${row.vault}</span>
      <nav>${PANELS.map(([name]) => html`<button aria-pressed=${panel.value === name} onClick=${() => (panel.value = panel.value === name ? "" : name)}>${t(name)}</button>`)}</nav>
    </header>
  `;
}

/** Change the session on the server. */
export async function patch(shown, body) {
  try {
    await send("PATCH", at("sessions", shown.id), body);
    await shown.load();
  } catch (error) {
    tell(error);
  }
}
