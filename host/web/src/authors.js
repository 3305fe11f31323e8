// For whoever writes plugins: what each one is, did, and cost; why something is allowed.
import { useState } from "preact/hooks";
import { at, get } from "./api.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { reloads, tell } from "./state.js";
import { t } from "./strings.js";

const ms = (us) => `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;

export function Plugins({ shown }) {
  const plugins = useLoaded("/plugins", reloads.value, shown.last.value) ?? [];
  const ledger = useLoaded(`${at("sessions", shown.id)}/ledger`, shown.last.value) ?? [];
  const spent = Object.groupBy(ledger, (row) => row.plugin);
  return html`
    ${reloads.value.length > 0 && html`<h2>${t("reload")}</h2>
      <ul class="reloads">${reloads.value.map((event) => html`<li key=${event.seq}><time>${new Date(event.ts).toLocaleTimeString()}</time> ${event.changed.map((one) => `${one.name} ${one.change}`).join(", ")}${(event.kept ?? []).map((one) => html`<br /><b>${one.file}: ${one.error}</b>`)}</li>`)}</ul>`}
    <ul class="plugins">${plugins.map((one) => html`<${Plugin} key=${one.name} plugin=${one} rows=${spent[one.name] ?? []} />`)}</ul>
    <${Ledger} ledger=${ledger} shown=${shown} />
    <${Explain} shown=${shown} />
  `;
}

function Plugin({ plugin, rows }) {
  const us = rows.reduce((sum, row) => sum + row.us, 0);
  const calls = rows.reduce((sum, row) => sum + row.count, 0);
  return html`
    <li class=${plugin.status}>
      <details>
        <summary><b>${plugin.name}</b> <small>${plugin.version}</small> <span class="state">${plugin.status}</span> ${calls > 0 && html`<small class="time">${calls} × · ${ms(us)}</small>`}           ${plugin.quarantined.length > 0 && html`<span class="badge">${t("quarantine")}: ${plugin.quarantined.join(", ")}</span>`}</summary>
        <dl>
          <dt>${t("tier")}</dt><dd>${plugin.tier}</dd><dt>${t("file")}</dt><dd>${plugin.file || plugin.source}</dd>
          <dt>${t("hooks")}</dt><dd>${plugin.hooks.join(", ") || "–"}</dd><dt>${t("tools")}</dt><dd>${plugin.tools.join(", ") || "–"}</dd>
          <dt>${t("importing")}</dt><dd>${plugin.import_ms.toFixed(1)} ms</dd>
        </dl>
      </details>
      ${plugin.error && html`<p class="problem">${plugin.error}${plugin.hint ? ` · ${plugin.hint}` : ""}</p>`}
    </li>
  `;
}

/** What each plugin changed in a turn. */
function Ledger({ ledger, shown }) {
  const turns = [...new Set(ledger.map((row) => row.turn))];
  const [turn, choose] = useState("");
  const [all, showAll] = useState(false);
  const chosen = turns.includes(turn) ? turn : turns.at(-1);
  const rows = ledger.filter((row) => row.turn === chosen && (all || row.outcome !== "ok"));
  return html`
    <h2>${t("ledger")}</h2>
    <div class="row">
      <select aria-label=${t("turn")} value=${chosen} onChange=${(event) => choose(event.target.value)}>${turns.map((one, index) => html`<option value=${one}>${t("turn")} ${index + 1}</option>`)}</select>
      <label><input type="checkbox" checked=${all} onChange=${(event) => showAll(event.target.checked)} /> ${t("unchanged")}</label>
    </div>
    <table class="ledger"><thead><tr><th>${t("step")}</th><th>${t("hooks")}</th><th>${t("plugins")}</th><th>${t("status")}</th><th>${t("time")}</th></tr></thead><tbody>
      ${rows.map((row) => html`<tr class=${row.outcome}>
        <td>${row.step}</td><td>${row.hook}</td><td>${row.plugin}</td>
        <td>${row.outcome}${row.count > 1 ? ` × ${row.count}` : ""}${row.delta ? html`<details><summary>±</summary><pre>${JSON.stringify(row.delta, null, 2)}</pre></details>` : ""}</td>
        <td>${ms(row.us)}</td></tr>`)}
    </tbody></table>
  `;
}

const DOMAINS = ["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"];

function Explain({ shown }) {
  const [domain, setDomain] = useState("bash");
  const [input, setInput] = useState("");
  const [said, say] = useState(null);
  const look = async (event) => {
    event.preventDefault();
    say((await get(`/permissions/explain?domain=${domain}&input=${encodeURIComponent(input)}&session=${shown.id}`).catch(tell)) ?? null);
  };
  return html`
    <h2>${t("explain")}</h2>
    <form class="row" onSubmit=${look}>
      <select aria-label=${t("domain")} value=${domain} onChange=${(event) => setDomain(event.target.value)}>${DOMAINS.map((one) => html`<option>${one}</option>`)}</select>
      <input aria-label=${t("input")} placeholder=${t("input")} value=${input} onInput=${(event) => setInput(event.target.value)} required />
      <button>${t("ask")}</button>
    </form>
    ${said && html`<div role="status"><p><b>${said.decision}</b>: ${said.reason ?? said.cause}</p>
      <ol class="chain">${said.chain.filter((rule) => rule.matched).map((rule) => html`<li><code>${rule.decision} ${rule.domain} ${rule.pattern}</code> <small>${rule.source}${rule.line ? `:${rule.line}` : ""}</small></li>`)}</ol></div>`}
  `;
}
