// A tool's call: name, target, state and time; its body is made when it is opened, its question stands inside it.
import { useEffect, useRef, useState } from "preact/hooks";
import { at, get, post } from "./api.js";
import { Diff } from "./diff.js";
import { html } from "./html.js";
import { Proposal } from "./memory.js";
import { approvals, drop, parsed, show, tell } from "./state.js";
import { t } from "./strings.js";
import { Transcript } from "./transcript.js";

const LINES = 200; // of an output that are put into the page at once

export function Card({ call, result, shown }) {
  const known = shown.calls.value[call.id] ?? {};
  const question = approvals.value.find((one) => one.call_id === call.id && one.session === shown.id);
  const state = result ? result.status : question ? "waiting" : (known.state ?? "pending");
  const [opened, setOpened] = useState(false);
  const args = known.args ?? parsed(call.arguments);
  return html`
    <article class=${`card ${state}`} aria-label=${`${call.name}: ${t(state)}`}>
      <button class="card-head" aria-expanded=${opened} onClick=${() => setOpened(!opened)}>
        <b>${call.name}</b> <span class="target">${visible(target(args, result))}</span>
        ${result?.truncated && html`<span class="badge">${t("truncated")}</span>`}
        <span class="state">${t(state)}</span> <${Time} known=${known} done=${Boolean(result)} />
      </button>
      ${question && html`<${Question} asked=${question} shown=${shown} />`}
      ${!result && shown.progress.value[call.id] && html`<pre class="progress">${shown.progress.value[call.id]}</pre>`}
      ${result?.metadata?.proposal && call.name === "memory_propose" && html`<${Proposal} call=${call} args=${args} result=${result} shown=${shown} />`}
      ${opened && html`<${Body} args=${args} result=${result} />`}
      ${result?.truncated && result.output_id && html`<${Whole} id=${result.output_id} />`}
      ${result?.metadata?.session && html`<${Child} id=${result.metadata.session} />`}
    </article>
  `;
}

/** Text in which nothing hides: what reorders or cannot be seen stands there as an escape. */
const visible = (text) => text.replace(/[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

function target(args, result) {
  if (result?.title) return result.title;
  const values = Object.entries(args ?? {}).sort(([one], [other]) => (other === "path") - (one === "path")).map(([, value]) => value);
  return values.filter((value) => typeof value === "string" || typeof value === "number").join(" ").slice(0, 160);
}

function Time({ known, done }) {
  const [now, setNow] = useState(Date.now());
  const ticking = !done && known.state === "running";
  useEffect(() => {
    if (!ticking) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [ticking]);
  const ms = known.ms ?? (ticking ? Math.max(0, now - known.since) : null);
  return ms === null ? null : html`<span class="time">${ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`}</span>`;
}

function Body({ args, result }) {
  const diff = result?.metadata?.diff;
  return html`
    <div class="card-body">
      <dl>${Object.entries(args ?? {}).map(([name, value]) => html`<dt>${name}</dt><dd><pre>${typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre></dd>`)}</dl>
      ${diff ? html`<${Diff} text=${diff} />` : result && html`<${Lines} text=${result.output ?? ""} />`}
    </div>
  `;
}

/** Text by pieces of two hundred lines. */
function Lines({ text }) {
  const [pieces, setPieces] = useState(1);
  const lines = text.split("\n");
  return html`<pre class="output">${lines.slice(0, pieces * LINES).join("\n")}</pre>
    ${lines.length > pieces * LINES && html`<button onClick=${() => setPieces(pieces + 1)}>${t("more")} (${lines.length - pieces * LINES})</button>`}`;
}

/** An output that was too long for the model, read by range. */
function Whole({ id }) {
  const [part, setPart] = useState(null);
  const read = async () => {
    try {
      const next = await get(`${at("outputs", id)}?offset=${part?.next ?? 0}`);
      setPart({ text: (part?.text ?? "") + next.text, next: next.next, size: next.size });
    } catch (error) {
      if (error.code === "expired") setPart({ text: t("expired"), next: null });
      else tell(error);
    }
  };
  if (!part) return html`<button class="whole" onClick=${read}>${t("viewFull")}</button>`;
  return html`<pre class="output">${part.text}</pre>${part.next !== null && html`<button onClick=${read}>${t("more")}</button>`}`;
}

function Child({ id }) {
  const [opened, setOpened] = useState(false);
  return html`<details class="child" onToggle=${(event) => setOpened(event.target.open)}><summary>${t("child")}</summary>${opened && html`<${Inside} id=${id} />`}</details>`;
}

function Inside({ id }) {
  useEffect(() => () => drop(id), [id]);
  return html`<${Transcript} shown=${show(id)} inside />`;
}

const KEYS = { y: "once", Y: "always", s: "stop" };

/** The question of a call: what, where, why, what "always" would store. Keys work while it has the focus. */
function Question({ asked, shown }) {
  const { request } = asked;
  const [why, setWhy] = useState(null);
  const [problem, setProblem] = useState("");
  const reason = useRef(null);
  const answer = async (reply, message = "") => {
    try {
      await post(at("approvals", asked.id), { reply, message, hash: request.hash });
      approvals.value = approvals.value.filter((one) => one.id !== asked.id);
      if (shown.status.value === "idle") await post(`${at("sessions", shown.id)}/resume`);
    } catch (error) {
      setProblem(error.code === "changed" ? t("changed") : error.code === "answered" ? t("answered") : error.message);
      if (error.status === 409) approvals.value = await get("/approvals?state=pending").catch(() => approvals.value);
    }
  };
  const pressed = (event) => {
    if (event.target !== event.currentTarget) return;
    if (KEYS[event.key]) answer(KEYS[event.key]);
    if (event.key === "n") setWhy("");
  };
  useEffect(() => {
    if (why === "") reason.current?.focus();
  }, [why === ""]);
  return html`
    <div class="question" role="group" tabindex="-1" id=${asked.id} aria-label=${`${t("question")}: ${request.tool}`} onKeyDown=${pressed}>
      <p><b>${request.tool}</b> ${t("wants")} <code>${visible((request.targets ?? []).join(", "))}</code></p>
      <p class="because">${t("because")}: ${request.reason}</p>
      ${request.preview && html`<${Diff} text=${request.preview} />`}
      ${request.always && html`<p class="always">${t("stores")}: ${request.always}</p>`}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="answers">
        <button class="primary" onClick=${() => answer("once")}>${t("once")} <kbd>y</kbd></button>
        <button onClick=${() => answer("always")}>${t("always")} <kbd>Y</kbd></button>
        <button onClick=${() => setWhy(why === null ? "" : null)}>${t("refuse")} <kbd>n</kbd></button>
        <button onClick=${() => answer("stop")}>${t("stop")} <kbd>s</kbd></button>
      </div>
      ${why !== null && html`
        <form onSubmit=${(event) => { event.preventDefault(); answer("reject", why); }}>
          <input ref=${reason} aria-label=${t("reason")} placeholder=${t("reason")} value=${why} onInput=${(event) => setWhy(event.target.value)} />
          <button>${t("refuse")}</button>
        </form>`}
    </div>
  `;
}
