// The whole: the list, the session, what stands beside it, and what is said about all of it.
import { Composer } from "./composer.js";
import { ask, Dialog } from "./dialog.js";
import { html } from "./html.js";
import { goToQuestion, useKeys } from "./keys.js";
import { Panel, PANELS } from "./panels.js";
import { Sessions } from "./sessions.js";
import { Sheet } from "./sheet.js";
import { approvals, choose, listSessions, notice, online, open, panel, patch, sessions, tell } from "./state.js";
import { t } from "./strings.js";
import { Transcript } from "./transcript.js";

/** What stands there until a link lets this browser in: it may be pasted here as well as into the address. */
export const Locked = ({ why }) => html`
  <main class="locked"><h1>Moryflow</h1>${why && html`<p class="problem" role="alert">${why}</p>`}<p>${t("noToken").split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</p>
    <form onSubmit=${(event) => { event.preventDefault(); location.hash = `code=${event.target.link.value.trim().split("code=").at(-1)}`; }}>
      <input name="link" aria-label=${t("link")} placeholder=${t("link")} autocomplete="off" autofocus required /> <button class="primary">${t("enter")}</button></form></main>`;

export function App() {
  useKeys();
  const shown = open.value;
  const waiting = approvals.value.length;
  return html`
    <a class="skip" href="#message" onClick=${(event) => { event.preventDefault(); document.getElementById("message")?.focus(); }}>${t("toMessage")}</a>
    <div class="said" role="status">
      ${!online.value && html`<p class="offline">${t("offline")}</p>`}
      ${waiting > 0 && html`<p class="asking"><button onClick=${goToQuestion}>${waiting === 1 ? t("question") : `${t("questions")}: ${waiting}`}</button></p>`}
      ${notice.value && html`<p class="notice"><span>${notice.value}</span> <button aria-label=${t("close")} onClick=${() => (notice.value = "")}>×</button></p>`}
    </div>
    <div class=${`app ${shown ? "has-session" : ""} ${panel.value && shown ? "has-panel" : ""}`}>
      <${Sessions} />
      <main>
        ${shown ? html`<${Header} shown=${shown} key=${`h${shown.id}`} /><${Transcript} shown=${shown} key=${shown.id} /><${Composer} shown=${shown} key=${`c${shown.id}`} />` : html`<${Composer} key="start" />`}
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
