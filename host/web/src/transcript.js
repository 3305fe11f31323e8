// What was said: each node is drawn once; only the message that is being written grows.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { at, post } from "./api.js";
import { Card, Child } from "./card.js";
import { html, memo } from "./html.js";
import { render, stream } from "./markdown.js";
import { approvals, choose, draft, listSessions, tell } from "./state.js";
import { count } from "./stats.js";
import { t } from "./strings.js";

export function Transcript({ shown, inside = false }) {
  const box = useRef(null);
  const nodes = shown.nodes.value;
  const results = new Map(nodes.filter((node) => node.kind === "tool").map((node) => [node.payload.call_id, node.payload]));
  const turns = useMemo(() => ends(nodes, shown.turns.value), [nodes, shown.turns.value]);
  const undone = new Set(nodes.map((node) => node.payload.void).filter(Boolean));
  const live = nodes.some((node) => node.id === shown.live.value?.id) ? null : shown.live.value; // never beside its own node
  const away = useSticking(box, !inside, shown);
  useFinding(box, shown);
  const said = useAnnounced(nodes);
  return html`
    <div class=${inside ? "transcript inside" : "transcript"} ref=${box}>
      ${shown.more.value && html`<button class="older" onClick=${() => shown.older().catch(tell)}>${t("older")}</button>`}
      <div role="log" aria-live="off">
        ${nodes.map((node) => html`<${Item} key=${node.id} node=${node} shown=${shown} results=${results} inside=${inside} undone=${undone} turn=${turns.get(node.id)} />`)}
        ${live && html`<${Live} key=${live.id} shown=${shown} />`}
      </div>
      <${Doing} shown=${shown} />
      <p class="unseen" aria-live="polite">${said}</p>
      ${away && html`<button class="to-end" aria-label=${t("toEnd")} title=${t("toEnd")} onClick=${() => (box.current.scrollTop = box.current.scrollHeight)}>↓</button>`}
    </div>
  `;
}

/** Stay at the end while it grows, if that is where the reader is; who sends something wants to see it. */
function useSticking(box, wanted, shown) {
  const [away, setAway] = useState(false);
  useEffect(() => {
    if (!wanted) return;
    const element = box.current;
    let atEnd = true;
    const toEnd = () => atEnd && (element.scrollTop = element.scrollHeight);
    const moved = () => {
      const left = element.scrollHeight - element.scrollTop - element.clientHeight;
      atEnd = left < 60;
      setAway(left > element.clientHeight);
    };
    shown.toEnd = () => (atEnd = true);
    const grown = new MutationObserver(toEnd);
    element.addEventListener("scroll", moved, { passive: true });
    grown.observe(element, { childList: true, subtree: true, characterData: true });
    const sized = new ResizeObserver(toEnd); // a message that comes into view gets its own height only then
    for (const child of element.children) sized.observe(child);
    toEnd();
    return () => {
      grown.disconnect();
      sized.disconnect();
      element.removeEventListener("scroll", moved);
    };
  }, []);
  return away;
}

/** Go to the node that a search led to, fetching what is older until it is there. */
function useFinding(box, shown) {
  const { wanted, nodes, more } = { wanted: shown.wanted.value, nodes: shown.nodes.value, more: shown.more.value };
  useEffect(() => {
    if (!wanted || !nodes.length) return;
    const at = nodes.findIndex((node) => node.id === wanted);
    const element = box.current.querySelector(`[data-node="${CSS.escape(wanted)}"]`);
    if (at < 0 && more) shown.older().catch(tell);
    else {
      shown.wanted.value = "";
      element?.scrollIntoView({ block: "center" });
      element?.focus({ preventScroll: true });
    }
  }, [wanted, nodes]);
}

/** Read out a message when it is whole, never its letters. */
function useAnnounced(nodes) {
  const first = useRef(null);
  const last = nodes.findLast((node) => node.kind === "assistant" && node.payload.text);
  if (first.current === null && nodes.length) first.current = last?.id ?? "";
  return last && last.id !== first.current ? last.payload.text.slice(0, 500) : "";
}

/** Return the turns that have ended, by the answer that was their last: it came before the next turn began. */
function ends(nodes, turns) {
  const answers = nodes.filter((node) => node.kind === "assistant");
  const all = turns.filter((turn) => turn.purpose !== "compact");
  return new Map(all.filter((turn) => turn.ended).map((turn) => {
    const next = all[all.indexOf(turn) + 1]?.started ?? "~";
    return [answers.findLast((node) => node.created >= turn.started && node.created < next)?.id, turn];
  }));
}

/** What a turn took: tokens, cost, time. */
function Spent({ turn }) {
  const { input = 0, output = 0 } = turn.usage;
  const seconds = (Date.parse(turn.ended) - Date.parse(turn.started)) / 1000;
  const time = seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  const cost = turn.cost ? ` · $${turn.cost.toFixed(turn.cost < 0.1 ? 4 : 2)}` : "";
  return html`<span class="spent" title=${turn.model}>${input + output > 0 ? `${count(input)} → ${count(output)} ${t("tokens")}` : ""}${cost}${input + output > 0 || cost ? " · " : ""}${time}</span>`;
}

function Item({ node, shown, results, inside, undone, turn }) {
  switch (node.kind) {
    case "user":
      return html`<${Prompt} node=${node} shown=${shown} inside=${inside} />`;
    case "assistant":
      return html`
        <${Message} node=${node} shown=${shown} turn=${node.payload.calls.length ? null : turn} />
        ${node.payload.calls.map((call) => html`<${Card} key=${call.id} call=${call} result=${results.get(call.id)} shown=${shown} />`)}
        ${turn && (node.payload.calls.length > 0 || !node.payload.text) && html`<p class="spending"><${Spent} turn=${turn} /></p>`}
      `;
    case "note":
      return html`<details class="note" data-node=${node.id}><summary>${t("note")}${node.payload.title ? `: ${node.payload.title}` : ""}</summary><p>${node.payload.text}</p></details>`;
    case "compaction":
    case "prune":
      return html`<${Divider} node=${node} shown=${shown} undone=${undone.has(node.id)} />`;
    case "marker":
      return html`<${Marker} payload=${node.payload} />`;
    default:
      return null;
  }
}

const Prompt = memo(({ node, shown, inside }) => {
  const { text, files = [], images = [] } = node.payload;
  const edit = async () => {
    try {
      await post(`${at("sessions", shown.id)}/switch`, { node: node.parent });
      await shown.load();
      draft.value = { session: shown.id, text };
    } catch (error) {
      tell(error);
    }
  };
  const fork = async () => {
    try {
      const copy = await post(`${at("sessions", shown.id)}/fork`, { node: node.id });
      await listSessions();
      choose(copy.id);
    } catch (error) {
      tell(error);
    }
  };
  return html`
    <article class="user" aria-label=${t("you")} tabindex="-1" data-node=${node.id}>
      <p>${text}</p>
      ${images.map((image) => html`<img alt="" src=${`data:${image.media_type};base64,${image.data}`} />`)}
      ${files.map((file) => html`<details><summary>${file.path}</summary><pre>${file.text}</pre></details>`)}
      ${!inside && html`<footer><${Copy} text=${text} /><button onClick=${edit}>${t("edit")}</button><button onClick=${fork}>${t("fork")}</button></footer>`}
    </article>
  `;
}, sameNode);

const Message = memo(({ node, shown, turn }) => {
  const body = useRef(null);
  const { text, reasoning, calls } = node.payload;
  useLayoutEffect(() => {
    if (text) render(body.current, text);
  }, [text]);
  const label = Object.entries(shown.labels.value).filter(([, id]) => id === node.id).map(([name]) => name);
  if (!text && !reasoning) return null;
  return html`
    <article class="assistant" aria-label=${t("answer")} tabindex="-1" data-node=${node.id}>
      ${reasoning && html`<details class="reasoning"><summary>${t("reasoning")}</summary><p>${reasoning}</p></details>`}
      ${label.length > 0 && html`<small class="label">${label.join(", ")}</small>`}
      ${text && html`<div class="markdown" ref=${body}></div>${calls.length === 0 && html`<footer>${turn && html`<${Spent} turn=${turn} />`}<${Copy} text=${text} /></footer>`}`}
    </article>
  `;
}, sameNode);

/** Puts text into the clipboard, where the browser has one for this page. */
function Copy({ text }) {
  const [done, say] = useState(false);
  if (!navigator.clipboard) return null;
  const copy = () => navigator.clipboard.writeText(text).then(() => {
    say(true);
    setTimeout(say, 1500, false);
  }, tell);
  return html`<button onClick=${copy}>${done ? t("copied") : t("copy")}</button>`;
}

function sameNode(before, after) {
  return before.node === after.node && before.shown === after.shown && before.turn?.ended === after.turn?.ended;
}

/** The message that is being written: what comes is appended, nothing is drawn twice. */
function Live({ shown }) {
  const body = useRef(null);
  const thoughts = useRef(null);
  const { reasoning, text } = shown.live.value;
  useLayoutEffect(() => {
    const markdown = stream(body.current);
    let thinking = false;
    const add = (kind, piece) => {
      if (kind === "text") markdown.add(piece);
      else {
        thoughts.current.append(piece);
        if (!thinking) thoughts.current.parentElement.hidden = false;
        thinking = true;
      }
    };
    if (reasoning) add("reasoning", reasoning);
    if (text) add("text", text);
    shown.sinks.add(add);
    return () => {
      shown.sinks.delete(add);
      markdown.end();
    };
  }, []);
  return html`
    <article class="assistant live" aria-busy="true" aria-label=${t("answer")}>
      <details class="reasoning" hidden><summary>${t("reasoning")}</summary><p ref=${thoughts}></p></details>
      <div class="markdown" ref=${body}></div>
    </article>
  `;
}

/** What goes on now, or how the last turn ended and how to go on. */
function Doing({ shown }) {
  const asking = new Set(approvals.value.map((one) => one.session));
  const children = shown.children.value.map((id) => html`<${Child} key=${id} id=${id} open=${asking.has(id)} />`);
  if (shown.status.value === "busy") return html`${children}<p class="doing">${doing(shown)}</p>`;
  if (children.length) return children; // in the background: the turn that began them is over
  const ended = shown.last.value;
  if (!ended || ended.end_reason === "completed") return null;
  const error = shown.outcomes.value.errors[ended.turn];
  return html`
    <div class="ended">
      <p>${t("turnEnded")}: ${t(`end_${ended.end_reason}`)}${error ? ` · ${error.message}` : ""}</p>
      ${["interrupted", "model_error", "stopped"].includes(ended.end_reason) && html`<button onClick=${() => shown.resume()}>${t("goOn")}</button>`}
    </div>
  `;
}

function doing(shown) {
  if (approvals.value.some((one) => one.session === shown.id)) return t("waiting");
  const tools = Object.values(shown.calls.value).filter((call) => call.state === "running").map((call) => call.tool);
  const said = shown.doing.value || (tools.length ? `${t("runs")} ${tools.join(", ")}` : shown.here.value || shown.live.value ? t("thinking") : t("elsewhere"));
  return html`<span class="spinner" aria-hidden="true"></span> ${said}`;
}

/** Where the model's view was shortened: by how much, what is kept, and the way back. */
function Divider({ node, shown, undone }) {
  const { summary, tokens_before, details = {}, nodes = {} } = node.payload;
  const kept = useRef(null);
  const after = shown.outcomes.value.compactions[details.run];
  useLayoutEffect(() => {
    if (kept.current) render(kept.current, summary);
  }, [summary]);
  if (node.kind === "prune") return html`<p class="divider">${Object.keys(nodes).length} ${t("hidden")}</p>`;
  const last = shown.nodes.value.findLast((one) => one.kind === "compaction")?.id === node.id;
  const undo = () => post(`${at("sessions", shown.id)}/undo-compaction`).then(() => shown.load()).catch(tell);
  return html`
    <section class=${`divider ${undone ? "undone" : ""}`} aria-label=${t("compacted")} data-node=${node.id}>
      <p><b>${t("compacted")}</b>${tokens_before ? ` · ${tokens_before.toLocaleString()}${after ? ` → ${after.toLocaleString()}` : ""} ${t("tokens")}` : ""}${undone ? ` · ${t("undone")}` : ""}
        ${last && !undone ? html` <button onClick=${undo}>${t("undoCompaction")}</button>` : ""}</p>
      <details><summary>${t("kept")}</summary><div class="markdown" ref=${kept}></div></details>
    </section>
  `;
}

function Marker({ payload }) {
  const said = ["agent", "mode", "model", "label"].filter((name) => payload[name]).map((name) => `${t(name)}: ${payload[name]}`);
  return said.length ? html`<p class="divider">${said.join(", ")}</p>` : null;
}
