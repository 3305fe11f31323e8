// Where a person types: the mode, the message with files and pictures, what is queued. The draft outlives the tab.
import { useEffect, useRef, useState } from "preact/hooks";
import { patch } from "./app.js";
import { get } from "./api.js";
import { html } from "./html.js";
import { ask } from "./dialog.js";
import { begin } from "./sessions.js";
import { useLoaded } from "./loaded.js";
import { draft, health, reloads, sessions, tell } from "./state.js";
import { t } from "./strings.js";

const MOST = 5 << 20; // bytes of a picture or a file that go along

export function Composer({ shown }) {
  const place = `draft.${shown.id}`;
  const [text, write] = useState(localStorage.getItem(place) ?? "");
  const [attached, attach] = useState({ files: [], images: [] });
  const [names, offer] = useState([]);
  const [picked, pick] = useState(0);
  const input = useRef(null);
  const asked = useRef(0); // which question for names is the last: an answer to an earlier one counts no more
  const vault = shown.row.value?.vault; // unknown until the session is loaded; who types before that is offered names then
  const offerNone = () => {
    asked.current += 1;
    offer([]);
  };
  const setText = (value) => {
    write(value);
    localStorage.setItem(place, value);
  };
  useEffect(() => {
    if (draft.value?.session !== shown.id) return;
    setText([draft.value.text, input.current.value].filter(Boolean).join("\n")); // before what was typed meanwhile
    draft.value = null;
    input.current?.focus();
  }, [draft.value]);

  const send = () => {
    if (!text.trim() && !attached.images.length) return;
    shown.prompt(text, attached);
    setText("");
    attach({ files: [], images: [] });
    offerNone();
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
  /** Offer the files of the folder while a word that begins with @ is typed. */
  const complete = async (value, cursor) => {
    const word = /(?:^|\s)@([^\s@]*)$/.exec(value.slice(0, cursor));
    if (!word || !vault) return offerNone();
    const question = ++asked.current;
    const { files } = await get(`/files?limit=8&q=${encodeURIComponent(word[1])}&vault=${encodeURIComponent(vault)}`).catch(() => ({ files: [] }));
    if (question !== asked.current) return;
    pick(0);
    offer(files);
  };
  const take = (name) => {
    const cursor = input.current.selectionStart;
    const before = text.slice(0, cursor).replace(/@[^\s@]*$/, `@${name} `);
    setText(before + text.slice(cursor));
    offerNone();
    input.current.focus();
  };
  useEffect(() => {
    complete(input.current.value, input.current.selectionStart);
  }, [vault]);
  const pressed = (event) => {
    if (event.isComposing) return;
    if (names.length && ["ArrowDown", "ArrowUp", "Tab", "Enter", "Escape"].includes(event.key)) {
      event.preventDefault();
      if (event.key === "Escape") offerNone();
      else if (event.key.startsWith("Arrow")) pick((picked + (event.key === "ArrowDown" ? 1 : names.length - 1)) % names.length);
      else take(names[picked]);
    } else if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && shown.status.value === "busy") shown.stop();
  };
  const queue = shown.queue.value;
  return html`
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}
      onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); add(event.dataTransfer.files); }}>
      ${queue.length > 0 && html`<ul class="queue" aria-label=${t("queued")}>${queue.map((one) => html`
        <li key=${one.key}><span>${t("queued")}: ${one.text}</span> <button type="button" aria-label=${t("remove")} onClick=${() => shown.keep(queue.filter((other) => other !== one))}>×</button></li>`)}</ul>`}
      ${(attached.files.length > 0 || attached.images.length > 0) && html`<ul class="attached">
        ${attached.files.map((file) => html`<li>${file.path} <button type="button" aria-label=${t("remove")} onClick=${() => attach({ ...attached, files: attached.files.filter((one) => one !== file) })}>×</button></li>`)}
        ${attached.images.map((image) => html`<li><img alt="" src=${`data:${image.media_type};base64,${image.data}`} /> <button type="button" aria-label=${t("remove")} onClick=${() => attach({ ...attached, images: attached.images.filter((one) => one !== image) })}>×</button></li>`)}
      </ul>`}
      ${names.length > 0 && html`<ul class="names" role="listbox">${names.map((name, index) => html`<li role="option" aria-selected=${index === picked} onMouseDown=${(event) => { event.preventDefault(); take(name); }}>${name}</li>`)}</ul>`}
      <div class="row">
        <${Mode} shown=${shown} />
        <textarea id="message" ref=${input} rows=${Math.min(10, text.split("\n").length)} aria-label=${t("prompt")} placeholder=${t("prompt")} value=${text}
          onInput=${(event) => { setText(event.target.value); complete(event.target.value, event.target.selectionStart); }}
          onKeyDown=${pressed} onPaste=${(event) => { if (event.clipboardData.files.length) { event.preventDefault(); add(event.clipboardData.files); } }}></textarea>
        <label class="attach"><span class="unseen">${t("attach")}</span><span aria-hidden="true">+</span><input type="file" multiple onChange=${(event) => { add(event.target.files); event.target.value = ""; }} /></label>
        ${shown.status.value === "busy" && html`<button type="button" class="stop" onClick=${() => shown.stop()}>${t("stop")}</button>`}
        <button class="primary">${t("send")}</button>
      </div>
    </form>
  `;
}

/** Agent or full access, for this session; full access is confirmed once. */
function Mode({ shown }) {
  const mode = shown.row.value?.mode ?? "agent";
  const change = async (event) => {
    const wanted = event.target.value;
    event.target.value = mode;
    if (wanted === "agent") await patch(shown, { mode: wanted });
    else if (await ask(t("confirmFull"))) await patch(shown, { mode: wanted, confirm: true });
  };
  return html`
    <select class=${`mode ${mode}`} aria-label=${t("mode")} value=${mode} onChange=${change}>
      <option value="agent">${t("agent")}</option>
      <option value="full_access">${t("fullAccess")}</option>
    </select>
  `;
}

/** What stands there while no session does: the first message begins one. */
export function Start() {
  const [text, setText] = useState(localStorage.getItem("draft.") ?? "");
  const [wanted, want] = useState({});
  const sending = useRef(false);
  const agents = useLoaded("/agents", reloads.value) ?? [];
  const models = useLoaded("/models", reloads.value) ?? [];
  const write = (value) => {
    setText(value);
    localStorage.setItem("draft.", value);
  };
  const send = async (event) => {
    event.preventDefault();
    if (sending.current || !text.trim()) return;
    sending.current = true;
    const given = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value));
    const shown = await begin({ vault: health.value?.vault, ...given });
    sending.current = false;
    if (!shown) return;
    const typed = localStorage.getItem("draft.") ?? ""; // more than was sent, if somebody went on typing
    const rest = typed === text ? "" : typed.startsWith(text) ? typed.slice(text.length) : typed;
    if (rest) draft.value = { session: shown.id, text: rest };
    const sent = shown.prompt(text);
    write("");
    await sent;
  };
  const choice = (name) => (event) => want({ ...wanted, [name]: event.target.value });
  const mode = async (event) => {
    const full = event.target.value === "full_access";
    event.target.value = wanted.mode ?? "";
    if (!full || (await ask(t("confirmFull")))) want({ ...wanted, mode: full ? "full_access" : "", confirm: full });
  };
  const folders = [...new Set([health.value?.vault, ...sessions.value.map((row) => row.vault)].filter(Boolean))];
  return html`
    <form class="start" onSubmit=${send}>
      <h1>${t("welcome")}</h1>
      <textarea id="message" rows="3" aria-label=${t("prompt")} placeholder=${t("prompt")} value=${text} onInput=${(event) => write(event.target.value)}
        onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.altKey && !event.isComposing && send(event)}></textarea>
      <div class="row">
        <select class=${`mode ${wanted.mode}`} aria-label=${t("mode")} value=${wanted.mode ?? ""} onChange=${mode}>
          <option value="">${t("agent")}</option><option value="full_access">${t("fullAccess")}</option></select>
        <label>${t("who_answers")} <select value=${wanted.agent ?? ""} onChange=${choice("agent")}><option value="">${t("default")}</option>
          ${agents.filter((one) => one.mode !== "subagent").map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
        <label>${t("model")} <input list="all-models" placeholder=${t("default")} value=${wanted.model ?? ""} onInput=${choice("model")} /></label>
        <datalist id="all-models">${models.map((one) => html`<option value=${one.id} />`)}</datalist>
        <label>${t("folder")} <input list="folders" placeholder=${health.value?.vault ?? ""} value=${wanted.vault ?? ""} onInput=${choice("vault")} /></label>
        <datalist id="folders">${folders.map((one) => html`<option value=${one} />`)}</datalist>
        <button class="primary">${t("send")}</button>
      </div>
    </form>
  `;
}

function dataOf(file) {
  return new Promise((resume, fail) => {
    const reader = new FileReader();
    reader.onload = () => resume(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}
