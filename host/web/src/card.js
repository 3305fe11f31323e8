// A tool's call: name, target, state and time; its body is made when it is opened, its question stands inside it.
import { useEffect, useRef, useState } from "preact/hooks";
import { at, get, post } from "./api.js";
import { Diff, visible } from "./diff.js";
import { Choices } from "./choices.js";
import { html } from "./html.js";
import { toMessage } from "./keys.js";
import { Proposal } from "./memory.js";
import { translated } from "./reasons.js";
import { approvals, drop, parsed, show, tell } from "./state.js";
import { t } from "./strings.js";
import { Transcript } from "./transcript.js";

const LINES = 200; // of an output that are put into the page at once
const ASKED = 40; // of a target or a preview in a question, until all are asked for

export function Card({ call, result, shown }) {
  const known = shown.calls.value[call.id] ?? {};
  const question = approvals.value.find((one) => one.call_id === call.id && one.session === shown.id);
  const state = result ? result.status : question ? "waiting" : (known.state ?? "pending");
  const [wish, setOpened] = useState(null);
  const opened = wish ?? Boolean(result?.metadata?.diff); // a change is what one wants to see
  const args = known.args ?? parsed(call.arguments);
  const ms = known.ms ?? shown.outcomes.value.calls[call.id];
  const failed = !opened && ["error", "denied"].includes(state) && result?.output;
  return html`
    <article class=${`card ${state}`} aria-label=${`${call.name}: ${t(state)}`}>
      <button class="card-head" aria-expanded=${opened} onClick=${() => setOpened(!opened)}>
        <b>${visible(call.name)}</b> <span class="target">${visible(target(call.name, args, result))}</span>
        ${result?.truncated && html`<span class="badge">${t("truncated")}</span>`}
        <span class="state">${t(state)}</span> <${Time} known=${known} ms=${ms} done=${Boolean(result)} />
      </button>
      ${failed && html`<p class="why">${visible(result.output.slice(0, 200).split("\n")[0])}</p>`}
      ${question && html`<${Question} asked=${question} shown=${shown} />`}
      ${!result && shown.progress.value[call.id] && html`<pre class="progress">${shown.progress.value[call.id]}</pre>`}
      ${result?.metadata?.proposal && call.name === "memory_propose" && html`<${Proposal} call=${call} args=${args} result=${result} shown=${shown} />`}
      ${opened && html`<${Body} tool=${call.name} args=${args} result=${result} />`}
      ${result?.truncated && result.output_id && html`<${Whole} id=${result.output_id} />`}
      ${result?.metadata?.session && html`<${Child} id=${result.metadata.session} />`}
    </article>
  `;
}

/** What a call is about, without the name of its tool; of a command, the command and how it failed. */
function target(tool, args, result) {
  if (tool === "ask_user") return (result?.output ?? "").replaceAll("\n", " · ").slice(0, 160);
  const title = result?.title ?? "";
  if (title && tool !== "bash") return title.startsWith(`${tool} `) ? title.slice(tool.length + 1) : title;
  const ended = title && title !== "exit code 0" ? ` (${title})` : "";
  const values = Object.entries(args ?? {}).sort(([one], [other]) => (other === "path") - (one === "path")).map(([, value]) => value);
  return values.filter((value) => typeof value === "string" || typeof value === "number").join(" ").slice(0, 160) + ended;
}

function Time({ known, ms: measured, done }) {
  const [now, setNow] = useState(Date.now());
  const ticking = !done && known.state === "running";
  useEffect(() => {
    if (!ticking) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [ticking]);
  const ms = measured ?? (ticking ? Math.max(0, now - known.since) : null);
  return ms === null ? null : html`<span class="time">${ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`}</span>`;
}

const Arguments = ({ args }) => html`<dl>${Object.entries(args ?? {}).map(([name, value]) => html`<dt>${visible(name)}</dt><dd><${Diff} text=${typeof value === "string" ? value : JSON.stringify(value, null, 2)} most=${LINES} kind="argument" /></dd>`)}</dl>`;

function Body({ tool, args, result }) {
  const diff = result?.metadata?.diff;
  const given = html`<${Arguments} args=${args} />`;
  return html`
    <div class="card-body">
      ${diff ? html`<${Diff} text=${diff} path=${args?.path} /><details><summary>${t("arguments")}</summary>${given}</details>` : tool === "ask_user" ? null : given}
      ${!diff && result && html`<${Lines} text=${result.output ?? ""} />`}
      ${(result?.images ?? []).map((image) => html`<img alt="" src=${`data:${image.media_type};base64,${image.data}`} />`)}
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
  return html`<pre class="output" tabindex="0">${part.text}</pre>${part.next !== null && html`<button onClick=${read}>${t("more")} <small>${size(part.next)} / ${size(part.size)}</small></button>`}`;
}

const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1 << 20 ? `${(bytes / 1024).toFixed(0)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`);

/** A sub-agent's whole run, fetched when it is opened. */
export function Child({ id, open = false }) {
  const [opened, setOpened] = useState(open);
  useEffect(() => setOpened((now) => now || open), [open]);
  return html`<details class="child" open=${opened} onToggle=${(event) => setOpened(event.target.open)}><summary>${t("child")}</summary>${opened && html`<${Inside} id=${id} />`}</details>`;
}

function Inside({ id }) {
  useEffect(() => () => drop(id), [id]);
  return html`<${Transcript} shown=${show(id)} inside />`;
}

/** A target, or a pattern for targets, as a person reads it; the same as `in_words` of moryflow_sdk.support.texts. */
const inWords = (target) => target.replace(/^(?:vault:\/|(?:fs|shell|url|query|mcp|task|tool):)/, "") || t("thisFolder");

/** The question of a call: what will run, what is unusual about it, the answers. Their keys work while it has the focus. */
function Question({ asked, shown }) {
  const { request } = asked;
  const [why, setWhy] = useState(null);
  const [problem, setProblem] = useState("");
  const [exact, setExact] = useState(false); // "always" stores just what is asked about
  const reason = useRef(null);
  const circles = asked.kind === "doom_loop"; // it is about going on, so what is left is to stop
  const answer = async (reply, message = "") => {
    try {
      await post(at("approvals", asked.id), { reply, message, hash: request.hash });
      approvals.value = approvals.value.filter((one) => one.id !== asked.id);
      toMessage();
      if (shown.status.value === "idle") await shown.resume();
    } catch (error) {
      setProblem(error.code === "changed" ? t("changed") : error.code === "answered" ? t("answered") : error instanceof TypeError ? t("offline") : error.message);
      if (error.status === 409) approvals.value = await get("/approvals?state=pending").catch(() => approvals.value);
    }
  };
  const always = () => answer(exact ? "exact" : "always");
  const unusual = request.unusual ?? request.reason; // an earlier version stored the reason alone
  const pressed = (event) => {
    if (event.target !== event.currentTarget || event.ctrlKey || event.metaKey || event.altKey) return;
    const answers = { o: () => answer("once"), a: request.always && always, e: request.exact && (() => setExact(!exact)), f: request.preset && (() => answer("preset")), r: !circles && (() => setWhy("")), s: () => answer("stop") };
    if (!answers[event.key.toLowerCase()]) return;
    answers[event.key.toLowerCase()]();
    event.preventDefault();
  };
  useEffect(() => {
    if (why === "") reason.current?.focus();
  }, [why === ""]);
  if (request.questions?.length)
    return html`<div class="question" role="group" tabindex="-1" id=${asked.id} aria-label=${t("question")} onFocus=${(event) => event.target === event.currentTarget && event.target.firstElementChild.focus()}>
      <${Choices} questions=${request.questions} answer=${answer}>${problem && html`<p class="problem" role="alert">${problem}</p>`}<//></div>`;
  return html`
    <div class="question" role="group" tabindex="-1" id=${asked.id} aria-label=${`${t("question")}: ${request.tool}`} onKeyDown=${pressed}>
      <p><b>${circles ? t("circles") : t("mayIt")}</b></p>
      ${(request.targets ?? []).filter((one) => inWords(one) !== request.tool).map((one) => html`<${Diff} text=${inWords(one)} most=${ASKED} kind="target" />`)}
      ${request.folder && request.folder !== "vault:/" && html`<p class="folder"><b>${t("folder")}</b> ${visible(inWords(request.folder))}</p>`}
      ${request.preview && html`<${Diff} text=${request.preview} most=${ASKED} path=${request.args?.path ?? request.targets?.[0]} />`}
      ${unusual && html`<p class="because"><b>!</b> ${visible(translated(unusual))}</p>`}
      ${request.always && html`<p class="always"><b>${t("always")}:</b> ${visible(exact ? request.exact : request.always)}</p>`}
      ${request.preset && html`<p class="preset"><b>${t("fromNowOn")}:</b> ${visible(request.preset.says)}</p>`}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="answers">
        <button class="primary" onClick=${() => answer("once")}>${t("once")} <kbd>o</kbd></button>
        ${request.always && html`<button onClick=${always}>${t("always")} <kbd>a</kbd></button>`}
        ${request.exact && html`<button aria-pressed=${exact} onClick=${() => setExact(!exact)}>${t("exact")} <kbd>e</kbd></button>`}
        ${request.preset && html`<button onClick=${() => answer("preset")}>${t("fromNowOn")} <kbd>f</kbd></button>`}
        ${!circles && html`<button aria-expanded=${why !== null} onClick=${() => setWhy(why === null ? "" : null)}>${t("refuse")} <kbd>r</kbd></button>`}
        <button class="danger" onClick=${() => answer("stop")}>${t("stop")} <kbd>s</kbd></button>
      </div>
      ${why !== null && html`
        <form onSubmit=${(event) => { event.preventDefault(); answer("reject", why); }}>
          <input ref=${reason} aria-label=${t("reason")} placeholder=${t("reason")} value=${why} onInput=${(event) => setWhy(event.target.value)}
            onKeyDown=${(event) => event.key === "Escape" && setWhy(null)} />
          <button>${t("refuse")}</button>
        </form>`}
    </div>
  `;
}
