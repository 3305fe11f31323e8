// What was said: each node is drawn once; only the message that is being written grows.
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { at, post } from "./api.js";
import { Card } from "./card.js";
import { html } from "./html.js";
import { render, stream } from "./markdown.js";
import { choose, draft, listSessions, tell } from "./state.js";
import { t } from "./strings.js";

export function Transcript({ shown, inside = false }) {
  const box = useRef(null);
  const nodes = shown.nodes.value;
  const results = new Map(nodes.filter((node) => node.kind === "tool").map((node) => [node.payload.call_id, node.payload]));
  useSticking(box, !inside, shown);
  const said = useAnnounced(nodes);
  return html`
    <div class=${inside ? "transcript inside" : "transcript"} ref=${box}>
      ${shown.more.value && html`<button class="older" onClick=${() => shown.older().catch(tell)}>${t("older")}</button>`}
      <div role="log" aria-live="off">
        ${nodes.map((node) => html`<${Item} key=${node.id} node=${node} shown=${shown} results=${results} inside=${inside} />`)}
        ${shown.live.value && html`<${Live} key=${shown.live.value.id} shown=${shown} />`}
      </div>
      <${Doing} shown=${shown} />
      <p class="unseen" aria-live="polite">${said}</p>
    </div>
  `;
}

/** Stay at the end while it grows, if that is where the reader is; who sends something wants to see it. */
function useSticking(box, wanted, shown) {
  useEffect(() => {
    if (!wanted) return;
    const element = box.current;
    let atEnd = true;
    const toEnd = () => atEnd && (element.scrollTop = element.scrollHeight);
    const moved = () => (atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 60);
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
}

/** Read out a message when it is whole, never its letters. */
function useAnnounced(nodes) {
  const first = useRef(null);
  const last = nodes.findLast((node) => node.kind === "assistant" && node.payload.text);
  if (first.current === null && nodes.length) first.current = last?.id ?? "";
  return last && last.id !== first.current ? last.payload.text.slice(0, 500) : "";
}

function Item({ node, shown, results, inside }) {
  switch (node.kind) {
    case "user":
      return html`<${Prompt} node=${node} shown=${shown} inside=${inside} />`;
    case "assistant":
      return html`
        <${Message} node=${node} shown=${shown} />
        ${node.payload.calls.map((call) => html`<${Card} key=${call.id} call=${call} result=${results.get(call.id)} shown=${shown} />`)}
      `;
    case "note":
      return html`<article class="note" aria-label=${t("note")}><p>${node.payload.text}</p></article>`;
    case "compaction":
    case "prune":
      return html`<${Divider} node=${node} shown=${shown} />`;
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
    <article class="user" aria-label=${t("you")}>
      <p>${text}</p>
      ${images.map((image) => html`<img alt="" src=${`data:${image.media_type};base64,${image.data}`} />`)}
      ${files.map((file) => html`<details><summary>${file.path}</summary><pre>${file.text}</pre></details>`)}
      ${!inside && html`<footer><button onClick=${edit}>${t("edit")}</button><button onClick=${fork}>${t("fork")}</button></footer>`}
    </article>
  `;
}, sameNode);

const Message = memo(({ node, shown }) => {
  const body = useRef(null);
  const { text, reasoning } = node.payload;
  useLayoutEffect(() => {
    if (text) render(body.current, text);
  }, [text]);
  const label = Object.entries(shown.labels.value).filter(([, id]) => id === node.id).map(([name]) => name);
  if (!text && !reasoning) return null;
  return html`
    <article class="assistant" aria-label=${t("agent")}>
      ${reasoning && html`<details class="reasoning"><summary>${t("reasoning")}</summary><p>${reasoning}</p></details>`}
      ${label.length > 0 && html`<small class="label">${label.join(", ")}</small>`}
      ${text && html`<div class="markdown" ref=${body}></div>`}
    </article>
  `;
}, sameNode);

function sameNode(before, after) {
  return before.node === after.node && before.shown === after.shown;
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
    <article class="assistant live" aria-busy="true" aria-label=${t("agent")}>
      <details class="reasoning" hidden><summary>${t("reasoning")}</summary><p ref=${thoughts}></p></details>
      <div class="markdown" ref=${body}></div>
    </article>
  `;
}

function Doing({ shown }) {
  const ended = shown.last.value;
  if (shown.status.value === "busy") return html`<p class="doing"><span class="spinner" aria-hidden="true"></span> ${shown.here.value === false && !shown.live.value ? t("running") : t("thinking")}</p>`;
  if (ended && ended.end_reason !== "completed") return html`<p class="ended">${t("turnEnded")}: ${ended.end_reason}</p>`;
  return null;
}

function Divider({ node, shown }) {
  const { summary, tokens_before, tokens_after, nodes = {} } = node.payload;
  if (node.kind === "prune") return html`<p class="divider">${Object.keys(nodes).length} ${t("hidden")}</p>`;
  const undo = () => post(`${at("sessions", shown.id)}/undo-compaction`).then(() => shown.load()).catch(tell);
  return html`
    <section class="divider" aria-label=${t("compacted")}>
      <b>${t("compacted")}</b> ${tokens_before ? html`<span>${tokens_before} ${t("tokens")} ${t("before")}${tokens_after ? `, ${tokens_after} ${t("after")}` : ""}</span>` : ""}
      <details><summary>${t("kept")}</summary><p>${summary}</p></details>
      <button onClick=${undo}>${t("undoCompaction")}</button>
    </section>
  `;
}

function Marker({ payload }) {
  const said = ["agent", "mode", "model", "label"].filter((name) => payload[name]).map((name) => `${t(name)}: ${payload[name]}`);
  return said.length ? html`<p class="divider">${said.join(", ")}</p>` : null;
}
