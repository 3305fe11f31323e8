// What stands beside a session: its tree, the prompt and who made it, the plugins and what they did, figures.
import { useEffect, useState } from "preact/hooks";
import { at, get, post, send } from "./api.js";
import { patch } from "./app.js";
import { html } from "./html.js";
import { choose, listSessions, panel, reloads, tell } from "./state.js";
import { t } from "./strings.js";

export const PANELS = [["tree", Tree], ["prompts", Prompts], ["plugins", Plugins], ["stats", Stats]];

export function Panel({ shown }) {
  const [name, View] = PANELS.find(([one]) => one === panel.value) ?? PANELS[0];
  return html`
    <aside class="panel" aria-label=${t(name)}>
      <header><h1>${t(name)}</h1><button aria-label=${t("close")} onClick=${() => (panel.value = "")}>×</button></header>
      ${shown ? html`<${View} shown=${shown} key=${shown.id} />` : null}
    </aside>
  `;
}

/** Return what is at `path`, anew when one of `when` changes. */
function useLoaded(path, ...when) {
  const [value, set] = useState(null);
  useEffect(() => {
    let wanted = true;
    get(path).then((found) => wanted && set(found), tell);
    return () => (wanted = false);
  }, [path, ...when]);
  return value;
}

// ---------------------------------------------------------------- tree

function Tree({ shown }) {
  const tree = useLoaded(`${at("sessions", shown.id)}/tree`, shown.nodes.value);
  if (!tree) return null;
  const named = Object.groupBy(Object.entries(tree.labels), ([, node]) => node);
  const onPath = new Set(shown.nodes.value.map((node) => node.id));
  const act = (work) => async () => {
    try {
      await work();
      await shown.load();
    } catch (error) {
      tell(error);
    }
  };
  const label = (node) => {
    const text = prompt(t("label"));
    return text ? post(`${at("sessions", shown.id)}/label`, { label: text, node }) : null;
  };
  const remove = async () => {
    if (!confirm(t("confirmDelete"))) return;
    await send("DELETE", at("sessions", shown.id)).catch(tell);
    await listSessions().catch(tell);
    choose(null);
  };
  return html`
    <ul class="tree">
      ${lines(tree.nodes).map(({ node, depth }) => html`
        <li key=${node.id} class=${`depth-${Math.min(depth, 8)} ${onPath.has(node.id) ? "on-path" : ""}`} aria-current=${node.id === tree.active}>
          <button title=${t("switchHere")} onClick=${act(() => post(`${at("sessions", shown.id)}/switch`, { node: node.id }))}>
            <small>${node.kind}</small> ${gist(node)} ${(named[node.id] ?? []).map(([name]) => html`<b class="label">${name}</b>`)}
          </button>
          <button class="plain" onClick=${act(() => label(node.id))}>${t("label")}</button>
        </li>`)}
    </ul>
    <footer class="row">
      <${Download} path=${`${at("sessions", shown.id)}/export`} name=${`${shown.id}.jsonl`} />
      <button onClick=${act(() => post(`${at("sessions", shown.id)}/compact`))}>${t("compact")}</button>
      <button class="danger" onClick=${remove}>${t("delete")}</button>
    </footer>
  `;
}

/** The nodes in the order of a tree that is read downwards, each with how many branchings stand above it. */
function lines(nodes) {
  const below = Map.groupBy(nodes, (node) => node.parent);
  const found = [];
  const waiting = (below.get(null) ?? []).map((node) => ({ node, depth: 0 })).reverse();
  while (waiting.length) {
    const line = waiting.pop();
    found.push(line);
    const children = below.get(line.node.id) ?? [];
    for (const node of [...children].reverse()) waiting.push({ node, depth: line.depth + (children.length > 1 ? 1 : 0) });
  }
  return found.filter(({ node }) => node.kind !== "marker" && node.kind !== "prune");
}

const gist = ({ payload }) => (payload.text || payload.summary || payload.tool || payload.calls?.map((call) => call.name).join(", ") || "").slice(0, 80);

function Download({ path, name }) {
  const save = async () => {
    try {
      const data = await (await send("GET", path, undefined, { raw: true })).blob();
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(data), download: name });
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (error) {
      tell(error);
    }
  };
  return html`<button onClick=${save}>${t("export")}</button>`;
}

// ---------------------------------------------------------------- prompt

const PARAMETERS = ["temperature", "topP", "maxTokens"];

function Prompts({ shown }) {
  const [settings, set] = useState(null);
  useEffect(() => {
    get("/settings/prompt").then(set, tell);
  }, []);
  const agents = useLoaded("/agents", reloads.value) ?? [];
  const models = useLoaded("/models", reloads.value) ?? [];
  const context = useLoaded(`${at("sessions", shown.id)}/context`, shown.nodes.value.length);
  const row = shown.row.value ?? {};
  const save = async (event) => {
    event.preventDefault();
    try {
      set(await send("PUT", "/settings/prompt", settings.mode === "default" ? { mode: "default" } : settings));
    } catch (error) {
      tell(error);
    }
  };
  return html`
    <label>${t("agent")} <select value=${row.agent} onChange=${(event) => patch(shown, { agent: event.target.value })}>
      ${agents.filter((one) => one.mode !== "subagent").map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
    <label>${t("model")} <input list="models" value=${row.model} onChange=${(event) => event.target.value && patch(shown, { model: event.target.value })} />
      <datalist id="models">${models.map((one) => html`<option value=${one.id} />`)}</datalist></label>
    ${settings && html`
      <form class="settings" onSubmit=${save}>
        <fieldset><legend>${t("prompts")}</legend>
          ${["default", "custom"].map((mode) => html`<label><input type="radio" name="prompt-mode" checked=${settings.mode === mode} onChange=${() => set({ ...settings, mode })} /> ${t(mode)}</label>`)}
          <textarea rows="8" aria-label=${t("prompts")} disabled=${settings.mode === "default"} value=${settings.text} onInput=${(event) => set({ ...settings, text: event.target.value })}></textarea>
          ${PARAMETERS.map((name) => html`
            <label>${name} <input type="number" step="any" disabled=${settings.mode === "default" || settings[name] === null} value=${settings[name] ?? ""}
              onInput=${(event) => set({ ...settings, [name]: event.target.value === "" ? null : Number(event.target.value) })} /></label>
            <label class="default"><input type="checkbox" disabled=${settings.mode === "default"} checked=${settings[name] === null} onChange=${(event) => set({ ...settings, [name]: event.target.checked ? null : 1 })} /> ${t("modelDefault")}</label>`)}
          <button class="primary">${t("save")}</button>
        </fieldset>
      </form>`}
    ${context && html`<h2>${t("who")}</h2><${Bars} rows=${{ ...context.parts, ...context.plugins }} unit=${t("tokens")} />`}
  `;
}

/** Figures as bars, each with its number. */
export function Bars({ rows, unit = "" }) {
  const shown = Object.entries(rows).filter(([, value]) => value > 0);
  const most = Math.max(1, ...shown.map(([, value]) => value));
  return html`<table class="bars"><tbody>${shown.map(([name, value]) => html`
    <tr><th scope="row">${name}</th><td><meter min="0" max=${most} value=${value} aria-label=${name}></meter></td><td>${value.toLocaleString()} ${unit}</td></tr>`)}</tbody></table>`;
}

// ---------------------------------------------------------------- for authors

function Plugins({ shown }) {
  const plugins = useLoaded("/plugins", reloads.value) ?? [];
  const ledger = useLoaded(`${at("sessions", shown.id)}/ledger`, shown.last.value) ?? [];
  const turns = [...new Set(ledger.map((row) => row.turn))];
  const [turn, choose] = useState("");
  const chosen = turn || turns.at(-1);
  return html`
    <table><thead><tr><th>${t("plugins")}</th><th>${t("status")}</th><th>${t("hooks")}</th></tr></thead><tbody>
      ${plugins.map((one) => html`<tr key=${one.name} class=${one.status}>
        <td>${one.name}</td><td title=${one.error}>${one.status}${one.error ? html`<br /><small>${one.error}</small>` : ""}${one.quarantined.length ? html`<br /><b>${t("quarantine")}: ${one.quarantined.join(", ")}</b>` : ""}</td>
        <td><small>${[...one.hooks, ...one.tools.map((tool) => `+${tool}`)].join(" ")}</small></td></tr>`)}
    </tbody></table>
    <h2>${t("ledger")}</h2>
    <select aria-label=${t("turn")} value=${chosen} onChange=${(event) => choose(event.target.value)}>${turns.map((one) => html`<option value=${one}>${one}</option>`)}</select>
    <table class="ledger"><tbody>
      ${ledger.filter((row) => row.turn === chosen).map((row) => html`<tr class=${row.outcome}>
        <td>${row.step}</td><td>${row.hook}</td><td>${row.plugin}</td><td>${row.outcome}${row.count > 1 ? ` × ${row.count}` : ""}</td><td>${row.us} µs</td>
        <td>${row.delta ? html`<details><summary>±</summary><pre>${JSON.stringify(row.delta, null, 2)}</pre></details>` : ""}</td></tr>`)}
    </tbody></table>
    <${Explain} shown=${shown} />
  `;
}

const DOMAINS = ["read", "edit", "bash", "web_fetch", "web_search", "mcp", "task", "tool"];

function Explain({ shown }) {
  const [domain, setDomain] = useState("bash");
  const [input, setInput] = useState("");
  const [said, say] = useState(null);
  const look = async (event) => {
    event.preventDefault();
    say(await get(`/permissions/explain?domain=${domain}&input=${encodeURIComponent(input)}&session=${shown.id}`).catch(tell));
  };
  return html`
    <h2>${t("explain")}</h2>
    <form class="row" onSubmit=${look}>
      <select aria-label="domain" value=${domain} onChange=${(event) => setDomain(event.target.value)}>${DOMAINS.map((one) => html`<option>${one}</option>`)}</select>
      <input aria-label="input" value=${input} onInput=${(event) => setInput(event.target.value)} required />
      <button>${t("ask")}</button>
    </form>
    ${said && html`<p><b>${said.decision}</b>: ${said.reason ?? said.cause}</p>
      <ol class="chain">${said.chain.filter((rule) => rule.matched).map((rule) => html`<li><code>${rule.decision} ${rule.domain} ${rule.pattern}</code> <small>${rule.source}${rule.line ? `:${rule.line}` : ""}</small></li>`)}</ol>`}
  `;
}

function Stats({ shown }) {
  const own = useLoaded(`${at("sessions", shown.id)}/stats`, shown.last.value);
  if (!own) return null;
  const calls = Object.fromEntries(Object.entries(own.tools).map(([tool, states]) => [tool, Object.values(states).reduce((sum, count) => sum + count, 0)]));
  return html`
    <dl class="figures">
      <dt>${t("turn")}</dt><dd>${own.turns}</dd><dt>${t("steps")}</dt><dd>${own.steps}</dd>
      <dt>${t("tokens")}</dt><dd>${own.usage.input.toLocaleString()} → ${own.usage.output.toLocaleString()} (${own.usage.cached.toLocaleString()} cached)</dd>
      <dt>$</dt><dd>${own.cost}</dd><dt>${t("question")}</dt><dd>${own.questions.asked} (${own.questions.waited_seconds} s)</dd>
    </dl>
    <${Bars} rows=${calls} /><h2>${t("hooks")} (ms)</h2><${Bars} rows=${Object.fromEntries(Object.entries(own.hooks).map(([hook, row]) => [hook, row.ms]))} />
  `;
}
