// The list of sessions, of terminals too, with a search through what was said.
import { useState } from "preact/hooks";
import { get, post } from "./api.js";
import { html } from "./html.js";
import { approvals, choose, found, health, listSessions, open, running, sessions, tell } from "./state.js";
import { sheet } from "./sheet.js";
import { t, when } from "./strings.js";

/** Begin a session, show it, and return it; nothing where the server will not. */
export async function begin(wanted) {
  try {
    const row = await post("/sessions", wanted);
    await listSessions();
    choose(row.id);
    return open.value;
  } catch (error) {
    tell(error);
  }
}

export function Sessions() {
  const [text, setText] = useState("");
  const look = async (event) => {
    event.preventDefault();
    found.value = text.trim() ? await get(`/search?q=${encodeURIComponent(text)}&limit=50`).catch(tell) : null;
  };
  const waiting = new Set(approvals.value.map((one) => one.session));
  const listed = sessions.value.filter((row) => !text || found.value || row.title.toLowerCase().includes(text.toLowerCase()));
  return html`
    <aside class="sessions" aria-label=${t("sessions")}>
      <header>
        <b>Moryflow</b>
        <button class="new" onClick=${() => choose(null)}>+ ${t("new")}</button>
        <form role="search" onSubmit=${look}>
          <input type="search" aria-label=${t("search")} placeholder=${t("search")} value=${text} onInput=${(event) => {
            setText(event.target.value);
            if (!event.target.value) found.value = null;
          }} />
        </form>
      </header>
      ${found.value?.length === 0 && html`<p class="none">${t("nothingFound")}</p>`}
      <ul>
        ${found.value
          ? found.value.map((hit) => html`<li key=${hit.node}><button onClick=${() => choose(hit.session, hit.node)}><span>${hit.snippet}</span><small>${t(hit.kind)} · ${titleOf(hit.session)}</small></button></li>`)
          : listed.map((row) => html`
            <li key=${row.id}>
              <button aria-current=${open.value?.id === row.id} onClick=${() => choose(row.id)}>
                <span>${waiting.has(row.id) ? html`<b class="mark" title=${t("question")}>?</b> ` : running.value.has(row.id) ? html`<i class="spinner" role="img" aria-label=${t("running")}></i> ` : ""}${row.title || t("untitled")}</span>
                <small>${row.vault === health.value?.vault ? "" : `${row.vault.split("/").pop()} · `}${when(row.updated)}</small>
              </button>
            </li>`)}
      </ul>
      <footer><button onClick=${() => (sheet.value = "devices")}>${t("devices")}</button></footer>
    </aside>
  `;
}

const titleOf = (id) => sessions.value.find((row) => row.id === id)?.title ?? "";
