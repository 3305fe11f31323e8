// The list of sessions, of terminals too, by day and folder; questions that wait; a search through what was said.
import { useEffect, useState } from "preact/hooks";
import { at, get, post, send } from "./api.js";
import { dayOf, when } from "./days.js";
import { ask } from "./dialog.js";
import { visible } from "./diff.js";
import { save } from "./download.js";
import { html } from "./html.js";
import { goTo } from "./keys.js";
import { Menu } from "./menu.js";
import { allow, allowed, unseen } from "./notify.js";
import { approvals, choose, listSessions, open, running, sessions, sheet, tell } from "./state.js";
import { t } from "./strings.js";

export function Sessions() {
  const [text, setText] = useState("");
  const [found, find] = useState(null); // {words, hits} of what is typed
  useEffect(() => {
    if (!text.trim()) return find(null);
    let wanted = true;
    const words = text.trim().split(/\s+/);
    const timer = setTimeout(() => get(`/search?q=${encodeURIComponent(text)}&limit=50`).then((hits) => wanted && find({ words, hits }), tell), 150);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [text]);
  const titled = text.trim() ? sessions.value.filter((row) => row.title.toLowerCase().includes(text.trim().toLowerCase())) : sessions.value;
  return html`
    <aside class="sessions" aria-label=${t("sessions")}>
      <header>
        <b>Moryflow</b>
        <button class="new" onClick=${() => choose(null)}>+ ${t("new")}</button>
        <form role="search" onSubmit=${(event) => event.preventDefault()}>
          <input type="search" aria-label=${t("search")} placeholder=${t("search")} value=${text} onInput=${(event) => setText(event.target.value)}
            onKeyDown=${(event) => event.key === "Escape" && setText("")} />
        </form>
      </header>
      <div class="list">
        ${approvals.value.length > 0 && html`<${Waiting} />`}
        ${found && titled.length + found.hits.length === 0 && html`<p class="none" role="status">${t("nothingFound")}</p>`}
        ${days(titled).map(([day, folders]) => html`<section key=${day}><h2>${day}</h2>${folders.map(([folder, rows]) => html`
          ${folder && html`<h3 title=${rows[0].vault}>${folder}</h3>`}<ul>${rows.map((row) => html`<${Row} key=${row.id} row=${row} />`)}</ul>`)}</section>`)}
        ${found?.hits.length > 0 && html`<section class="hits"><h2>${t("messages")}</h2><ul>${found.hits.map((hit) => html`
          <li key=${hit.node}><button class="open" onClick=${() => choose(hit.session, hit.node)}><span>${marked(hit.snippet, found.words)}</span><small>${t(hit.kind)} · ${titleOf(hit.session)}</small></button></li>`)}</ul></section>`}
      </div>
      <footer>
        <button onClick=${() => (sheet.value = "devices")}>${t("devices")}</button>
        ${allowed.value === "default" && html`<button onClick=${allow}>${t("notify")}</button>`}
        <button onClick=${() => (sheet.value = "keys")}>${t("keys")} <kbd>?</kbd></button>
      </footer>
    </aside>
  `;
}

const titleOf = (id) => sessions.value.find((row) => row.id === id)?.title ?? "";

/** Return [day, [[folder, rows]]]; a folder has a name only if there are several. */
function days(rows) {
  const several = new Set(sessions.value.map((row) => row.vault)).size > 1;
  const byDay = [...Map.groupBy(rows, (row) => dayOf(row.updated))];
  return byDay.map(([day, some]) => [day, [...Map.groupBy(some, (row) => row.vault)].map(([vault, own]) => [several ? vault.split("/").at(-1) || vault : "", own])]);
}

function Row({ row }) {
  const act = (work) => () => work().catch(tell);
  const rename = async () => {
    const title = await ask(t("title"), row.title);
    if (title) await send("PATCH", at("sessions", row.id), { title }).then(listSessions);
  };
  const fork = async () => {
    const copy = await post(`${at("sessions", row.id)}/fork`);
    await listSessions();
    choose(copy.id);
  };
  const remove = async () => {
    if (!(await ask(t("confirmDelete")))) return;
    await send("DELETE", at("sessions", row.id));
    await listSessions();
    if (open.value?.id === row.id) choose(null);
  };
  const items = [[t("rename"), act(rename)], [t("fork"), act(fork)], [t("export"), act(() => save(`${at("sessions", row.id)}/export`, `${row.id}.jsonl`))], [t("delete"), act(remove), "danger"]];
  return html`
    <li>
      <button class="open" aria-current=${open.value?.id === row.id} title=${row.vault} onClick=${() => choose(row.id)}>
        <span><${State} id=${row.id} />${row.title || t("untitled")}</span><small>${when(row.updated)}</small>
      </button>
      <${Menu} label=${`${t("menu")}: ${row.title || t("untitled")}`} items=${items} />
    </li>`;
}

/** What goes on in a session: it asks, it runs, or it has ended since somebody looked. */
function State({ id }) {
  if (approvals.value.some((one) => one.session === id)) return html`<b class="mark" title=${t("question")}>?</b> `;
  if (running.value.has(id)) return html`<i class="spinner" role="img" aria-label=${t("running")}></i> `;
  return unseen.value.has(id) ? html`<i class="dot" role="img" aria-label=${t("turnEnded")}></i> ` : "";
}

/** All questions that wait, whichever session asks. */
const Waiting = () => html`
  <section class="asks"><h2>${t("questions")}</h2>${approvals.value.map((one) => html`
    <button key=${one.id} onClick=${() => goTo(one)}><span>${one.request.questions ? "" : html`<b>${visible(one.request.tool ?? "")}</b> `}${visible(gist(one.request)).slice(0, 120)}</span><small>${titleOf(one.session)}</small></button>`)}</section>`;

const gist = ({ questions, targets = [] }) => questions?.[0]?.question ?? targets.map((one) => one.replace(/^\w+:\/?/, "")).join(", ");

const AROUND = 28; // characters before the first hit, so that it is seen in a narrow list

/** Return a snippet as plain text, cut around its first hit, with all hits marked. */
function marked(snippet, words) {
  const plain = snippet.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/\*\*|`+|^#+ |(?<=\s)#+ |\|/g, "");
  const wanted = new RegExp(`(${words.map((word) => word.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|")})`, "giu");
  const first = Math.max(0, plain.search(wanted));
  const start = first > AROUND ? plain.indexOf(" ", first - AROUND) + 1 || first : 0;
  const cut = `${start > 0 ? "…" : ""}${plain.slice(Math.min(start, first))}`;
  return cut.split(wanted).map((part, place) => (place % 2 ? html`<mark>${part}</mark>` : part));
}
