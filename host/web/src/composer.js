// Where a person types: the message with files and pictures, what is queued, and who answers how. The draft outlives the tab.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "./api.js";
import { ask } from "./dialog.js";
import { html } from "./html.js";
import { toMessage } from "./keys.js";
import { useKept } from "./loaded.js";
import { fitting, keyIn, Names, Picker } from "./names.js";
import { choose, draft, health, listSessions, open, patch, reloads, sessions, sheet, tell } from "./state.js";
import { count } from "./stats.js";
import { t } from "./strings.js";

const MOST = 5 << 20; // bytes of a picture or a file that go along
const EFFORTS = ["default", "none", "minimal", "low", "medium", "high", "xhigh", "max"];
const NOTHING = { files: [], images: [] };

/** The input of a session; without one, the first message begins it. */
export function Composer({ shown }) {
  const place = `draft.${shown?.id ?? ""}`;
  const [text, write] = useState(localStorage.getItem(place) ?? "");
  const [attached, attach] = useState(NOTHING);
  const [wanted, want] = useState({}); // what is chosen before there is a session
  const [names, offer] = useState({ rows: [] }); // {rows, mark: what they follow}
  const [picked, pick] = useState(0);
  const input = useRef(null);
  const sending = useRef(false);
  const asked = useRef(0); // which question for names is the last: an answer to an earlier one counts no more
  const vault = shown ? shown.row.value?.vault : wanted.vault || health.value?.vault; // unknown until it is loaded
  const offerNone = () => {
    asked.current += 1;
    offer({ rows: [] });
  };
  const setText = (value) => {
    write(value);
    localStorage.setItem(place, value);
  };
  useEffect(() => {
    if (!shown?.wanted.value) toMessage(); // else a search leads to a place
  }, []);
  useEffect(() => {
    if (!shown || draft.value?.session !== shown.id) return;
    setText([draft.value.text, input.current.value].filter(Boolean).join("\n")); // before what was typed meanwhile
    draft.value = null;
    input.current?.focus();
  }, [draft.value]);

  const send = async () => {
    if (sending.current || (!text.trim() && !attached.images.length)) return;
    offerNone();
    toMessage();
    if (!shown) return begin();
    shown.prompt(text, attached);
    setText("");
    attach(NOTHING);
  };
  const begin = async () => {
    sending.current = true;
    const { effort, ...given } = Object.fromEntries(Object.entries({ vault, ...wanted }).filter(([, value]) => value));
    try {
      const row = await post("/sessions", given);
      await listSessions();
      choose(row.id);
    } catch (error) {
      return tell(error);
    } finally {
      sending.current = false;
    }
    const typed = localStorage.getItem(place) ?? ""; // more than was sent, if somebody went on typing
    const rest = typed === text ? "" : typed.startsWith(text) ? typed.slice(text.length) : typed;
    if (rest) draft.value = { session: open.value.id, text: rest };
    if (effort) open.value.choose(effort);
    const sent = open.value.prompt(text, attached);
    localStorage.setItem(place, "");
    await sent;
  };
  const add = async (list) => {
    for (const file of list) {
      if (file.size > MOST) {
        tell(new Error(`${file.name}: > ${MOST >> 20} MiB`));
      } else if (file.type.startsWith("image/")) {
        const data = (await dataOf(file)).split(",")[1];
        attach((now) => ({ ...now, images: [...now.images, { media_type: file.type, data }] }));
      } else {
        const content = await file.text();
        attach((now) => ({ ...now, files: [...now.files, { path: file.name, text: content }] }));
      }
    }
  };
  /** Offer commands after the slash that begins a message, and files of the folder after an @. */
  const complete = async (value, cursor) => {
    const before = value.slice(0, cursor);
    const command = /^\/([\w:.@?-]*)$/.exec(before);
    const file = /(?:^|\s)@([^\s@]*)$/.exec(before);
    if (!command && !(file && vault)) return offerNone();
    const question = ++asked.current;
    const rows = await (command ? commandsLike(command[1]) : filesLike(file[1], vault)).catch(() => []);
    if (question !== asked.current) return;
    pick(0);
    offer({ rows, mark: command ? "/" : "@" });
  };
  const take = (row, isLast) => {
    const cursor = input.current.selectionStart;
    const before = text.slice(0, cursor).replace(/[/@][^\s@]*$/, `${names.mark}${row.id} `);
    setText(before + text.slice(cursor));
    offerNone();
    input.current.focus();
    if (!isLast) return;
    setText("");
    shown.prompt(before.trim());
  };
  useEffect(() => {
    complete(input.current.value, input.current.selectionStart);
  }, [vault]);
  const pressed = (event) => {
    if (event.isComposing || event.altKey) return;
    const isTyped = names.mark === "/" && names.rows.some((row) => `/${row.id}` === text.trim());
    const done = isTyped && event.key === "Enter" ? null : keyIn(event, names.rows.length, picked);
    if (done !== null) {
      event.preventDefault();
      if (typeof done === "number") pick(done);
      else if (done === "close") offerNone();
      else take(names.rows[picked], Boolean(shown) && names.mark === "/" && event.key === "Enter" && !names.rows[picked].hint);
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && shown?.status.value === "busy") shown.stop();
    else if (event.key === "?" && !text) {
      event.preventDefault();
      sheet.value = "keys";
    } else if (event.key === "ArrowUp" && !text && shown) {
      event.preventDefault();
      setText(shown.nodes.value.findLast((node) => node.kind === "user")?.payload.text ?? "");
    }
  };
  const queue = shown?.queue.value ?? [];
  const busy = shown?.status.value === "busy";
  return html`
    <form class=${shown ? "composer" : "start"} onSubmit=${(event) => { event.preventDefault(); send(); }}
      onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); add(event.dataTransfer.files); }}>
      ${!shown && html`<h1>${t("welcome")}</h1>`}
      ${queue.length > 0 && html`<ul class="queue" aria-label=${t("queued")}>${queue.map((one) => html`
        <li key=${one.key}><span>${t("queued")}: ${one.text}</span> <button type="button" aria-label=${t("remove")} onClick=${() => shown.keep(queue.filter((other) => other !== one))}>×</button></li>`)}</ul>`}
      <div class="box">
        ${names.rows.length > 0 && html`<${Names} id="names" label=${t(names.mark === "/" ? "commands" : "files")} ...${names} picked=${picked} onTake=${(row) => take(row)} />`}
        ${(attached.files.length > 0 || attached.images.length > 0) && html`<ul class="attached">
          ${attached.files.map((file) => html`<li>${file.path} <button type="button" aria-label=${t("remove")} onClick=${() => attach({ ...attached, files: attached.files.filter((one) => one !== file) })}>×</button></li>`)}
          ${attached.images.map((image) => html`<li><img alt="" src=${`data:${image.media_type};base64,${image.data}`} /> <button type="button" aria-label=${t("remove")} onClick=${() => attach({ ...attached, images: attached.images.filter((one) => one !== image) })}>×</button></li>`)}
        </ul>`}
        <textarea id="message" ref=${input} rows=${Math.min(10, Math.max(shown ? 1 : 3, text.split("\n").length))} aria-label=${t("prompt")} placeholder=${t("placeholder")} value=${text}
          aria-controls=${names.rows.length ? "names" : null} aria-activedescendant=${names.rows.length ? `names-${picked}` : null}
          onInput=${(event) => { setText(event.target.value); complete(event.target.value, event.target.selectionStart); }}
          onKeyDown=${pressed} onPaste=${(event) => { if (event.clipboardData.files.length) { event.preventDefault(); add(event.clipboardData.files); } }}></textarea>
        <div class="row">
          <div class="tools"><${Choices} shown=${shown} wanted=${wanted} want=${want} /></div>
          <div class="acts"><label class="attach" title=${t("attach")}><span class="unseen">${t("attach")}</span><span aria-hidden="true">+</span><input type="file" multiple onChange=${(event) => { add(event.target.files); event.target.value = ""; }} /></label>
          ${busy && html`<button type="button" class="stop" onClick=${() => shown.stop()}>${t("stop")}</button>`}
          <button class="primary">${t("send")}</button></div>
        </div>
      </div>
    </form>
  `;
}

/** Mode, agent, model, effort and folder: of the session, or for the one that the first message begins. */
function Choices({ shown, wanted, want }) {
  const agents = useKept("/agents") ?? [];
  const models = useKept("/models") ?? [];
  const begun = health.value?.new ?? {};
  const now = shown ? shown.row.value : { mode: begun.mode, agent: begun.agent ?? agents.find((one) => one.default)?.id, model: begun.model, ...wanted };
  if (!now) return null;
  const change = (more) => (shown ? patch(shown, more) : want({ ...wanted, ...more }));
  const setMode = async (event) => {
    const mode = event.target.value;
    event.target.value = now.mode ?? "agent";
    if (mode === "agent") await change({ mode, ...(shown ? {} : { confirm: false }) });
    else if (await ask(t("confirmFull"))) await change({ mode, confirm: true });
  };
  const effort = (shown ? shown.effort.value : wanted.effort) ?? "default";
  const folders = [...new Set([health.value?.vault, ...sessions.value.map((row) => row.vault)].filter(Boolean))].map((id) => ({ id }));
  const vault = wanted.vault || health.value?.vault;
  const model = now.model || models.find((one) => one.in_use)?.id;
  return html`
    <select class=${`mode ${now.mode}`} aria-label=${t("mode")} title=${t("mode")} value=${now.mode ?? "agent"} onChange=${setMode}>
      <option value="agent">${t("asksFirst")}</option><option value="full_access">${t("fullAccess")}</option></select>
    <select class="who" aria-label=${t("who_answers")} title=${t("who_answers")} value=${now.agent} onChange=${(event) => change({ agent: event.target.value })}>
      ${agents.filter((one) => one.mode !== "subagent").map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select>
    <${Picker} name="model" label=${t("model")} value=${model || t("model")} rows=${models.map((one) => ({ id: one.id, about: one.note }))} free onPick=${(id) => change({ model: id })} />
    <select class="effort" aria-label=${t("effort")} title=${t("effort")} value=${effort} onChange=${({ target: { value } }) => (shown ? shown.choose(value) : change({ effort: value }))}>
      ${EFFORTS.map((one) => html`<option value=${one}>${one === "default" ? t("effort") : one}</option>`)}</select>
    ${shown && html`<${Filled} tokens=${shown.filled.value} most=${models.find((one) => one.id === model)?.context_window} />`}
    ${!shown && vault && html`<${Picker} name="folder" label=${t("folder")} value=${vault.split("/").at(-1) || vault} rows=${folders} free onPick=${(id) => change({ vault: id })} />`}
  `;
}

/** How full the window of the model was at the last request. */
const Filled = ({ tokens, most }) => (tokens && most ? html`<span class="filled" title=${`${t("window")}: ${count(tokens)} / ${count(most)} ${t("tokens")}`}>${Math.round((100 * tokens) / most)} %</span>` : null);

let known = {}; // the commands, as they were after a reload

async function commandsLike(typed) {
  if (known.at !== reloads.value) known = { at: reloads.value, rows: (await get("/commands")).map((one) => ({ id: one.name, about: one.help, hint: one.hint })) };
  return fitting(known.rows, typed);
}

const filesLike = async (typed, vault) => (await get(`/files?limit=8&q=${encodeURIComponent(typed)}&vault=${encodeURIComponent(vault)}`)).files.map((id) => ({ id }));

function dataOf(file) {
  return new Promise((resume, fail) => {
    const reader = new FileReader();
    reader.onload = () => resume(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}
