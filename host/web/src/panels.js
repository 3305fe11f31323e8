// What stands beside a session, and its tree.
import { at, post, send } from "./api.js";
import { Plugins } from "./authors.js";
import { Diff } from "./diff.js";
import { ask } from "./dialog.js";
import { save } from "./download.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { Prompts } from "./prompts.js";
import { choose, listSessions, panel, tell } from "./state.js";
import { Stats } from "./stats.js";
import { t } from "./strings.js";

export const PANELS = [["changes", Changes], ["tree", Tree], ["prompts", Prompts], ["plugins", Plugins], ["stats", Stats]];

export function Panel({ shown }) {
  const [name, View] = PANELS.find(([one]) => one === panel.value) ?? PANELS[0];
  return html`
    <aside class="panel" aria-label=${t(name)}>
      <header><h1>${t(name)}</h1><button aria-label=${t("close")} onClick=${() => (panel.value = "")}>×</button></header>
      ${shown ? html`<${View} shown=${shown} key=${shown.id} />` : null}
    </aside>
  `;
}

/** What was changed, by file; of the part of the conversation that is loaded. */
function Changes({ shown }) {
  const made = shown.nodes.value.filter((node) => node.kind === "tool" && node.payload.metadata?.diff).map((node) => node.payload.metadata);
  const files = Map.groupBy(made, (one) => (one.targets ?? []).map((name) => name.replace(/^vault:\//, "")).join(", "));
  return html`
    ${shown.more.value && html`<button onClick=${() => shown.older().catch(tell)}>${t("older")}</button>`}
    ${files.size === 0 && html`<p class="none">${t("noChanges")}</p>`}
    ${[...files].map(([name, diffs]) => html`<details class="changes" open key=${name}><summary><b>${name}</b></summary>${diffs.map((one) => html`<${Diff} text=${one.diff} path=${name} />`)}</details>`)}
  `;
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
  const label = async (node) => {
    const text = await ask(t("label"), "");
    if (text) await post(`${at("sessions", shown.id)}/label`, { label: text, node });
  };
  const remove = async () => {
    if (!(await ask(t("confirmDelete")))) return;
    await send("DELETE", at("sessions", shown.id)).catch(tell);
    await listSessions().catch(tell);
    choose(null);
  };
  return html`
    <ul class="tree">
      ${lines(tree.nodes).map(({ node, depth }) => html`
        <li key=${node.id} class=${`depth-${Math.min(depth, 8)} ${onPath.has(node.id) ? "on-path" : ""}`} aria-current=${node.id === tree.active}>
          <button title=${t("switchHere")} onClick=${act(() => post(`${at("sessions", shown.id)}/switch`, { node: node.id }))}>
            <small>${t(node.kind)}</small> ${gist(node)} ${(named[node.id] ?? []).map(([name]) => html`<b class="label">${name}</b>`)}
          </button>
          <button class="plain" onClick=${act(() => label(node.id))}>${t("label")}</button>
        </li>`)}
    </ul>
    ${(shown.row.value?.parent || tree.children.length > 0) && html`<h2>${t("children")}</h2>
      <ul class="kin">${shown.row.value?.parent && html`<li><button onClick=${() => choose(shown.row.value.parent)}>‹ ${t("parent")}</button></li>`}
      ${below(tree.children).map((one) => html`<li key=${one.session}><button onClick=${() => choose(one.session)}><b>${one.agent}</b> ${one.title} <small>${t(`end_${one.end_reason}`)} · ${one.steps} ${t("steps")}</small></button></li>`)}</ul>`}
    <footer class="row">
      <button onClick=${() => save(`${at("sessions", shown.id)}/export`, `${shown.id}.jsonl`).catch(tell)}>${t("export")}</button>
      <button class="danger" onClick=${remove}>${t("delete")}</button>
    </footer>
  `;
}

const below = (children) => children.flatMap((one) => [one, ...below(one.children)]);

/** The nodes in the order of a tree that is read downwards, each with how many branchings stand above it. */
function lines(nodes) {
  const under = Map.groupBy(nodes, (node) => node.parent);
  const found = [];
  const waiting = (under.get(null) ?? []).map((node) => ({ node, depth: 0 })).reverse();
  while (waiting.length) {
    const line = waiting.pop();
    found.push(line);
    const children = under.get(line.node.id) ?? [];
    for (const node of [...children].reverse()) waiting.push({ node, depth: line.depth + (children.length > 1 ? 1 : 0) });
  }
  return found.filter(({ node }) => node.kind !== "marker" && node.kind !== "prune");
}

const gist = ({ payload }) => (payload.text || payload.summary || payload.tool || payload.calls?.map((call) => call.name).join(", ") || "").slice(0, 80);
