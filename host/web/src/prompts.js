// The prompt: what a person sets of it, who put each block there, and what fills the window.
import { useEffect, useState } from "preact/hooks";
import { at, get, post, send } from "./api.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { patch, reloads, tell } from "./state.js";
import { Bars, count } from "./stats.js";
import { t } from "./strings.js";

const PARAMETERS = { temperature: [0, 2, 0.1], topP: [0, 1, 0.05], maxTokens: [1, null, 1] };

export function Prompts({ shown }) {
  const agents = useLoaded("/agents", reloads.value) ?? [];
  const models = useLoaded("/models", reloads.value) ?? [];
  const [saved, setSaved] = useState(0);
  const context = useLoaded(`${at("sessions", shown.id)}/context`, shown.nodes.value.length, saved);
  const row = shown.row.value ?? {};
  return html`
    <div class="fields">
      <label>${t("agent")} <select value=${row.agent} onChange=${(event) => patch(shown, { agent: event.target.value })}>
        ${agents.filter((one) => one.mode !== "subagent").map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
      <label>${t("model")} <input list="models" value=${row.model} onChange=${(event) => event.target.value && patch(shown, { model: event.target.value })} />
        <datalist id="models">${models.map((one) => html`<option value=${one.id} />`)}</datalist></label>
    </div>
    <${Base} onSaved=${() => setSaved(saved + 1)} />
    ${context && html`<${Context} context=${context} shown=${shown} />`}
  `;
}

/** The base of the system prompt, for all sessions: the default, or a text and parameters of one's own. */
function Base({ onSaved }) {
  const [settings, set] = useState(null);
  const [said, say] = useState("");
  useEffect(() => {
    get("/settings/prompt").then(set, tell);
  }, []);
  if (!settings) return null;
  const standard = settings.mode === "default";
  const put = async (body) => {
    try {
      set(await send("PUT", "/settings/prompt", body));
      say(t("saved"));
      onSaved();
    } catch (error) {
      say(error.message);
    }
  };
  const change = (more) => {
    say("");
    set({ ...settings, ...more });
  };
  const number = (name) => (event) => change({ [name]: event.target.value === "" ? null : Number(event.target.value) });
  return html`
    <form class="settings" onSubmit=${(event) => { event.preventDefault(); put(standard ? { mode: "default" } : settings); }}>
      <h2>${t("base")}</h2>
      <div class="row">${["default", "custom"].map((mode) => html`<label><input type="radio" name="prompt-mode" checked=${settings.mode === mode} onChange=${() => change({ mode })} /> ${t(mode)}</label>`)}</div>
      ${!standard && html`<textarea rows="8" aria-label=${t("base")} value=${settings.text} onInput=${(event) => change({ text: event.target.value })}></textarea>`}
      ${!standard && html`<div class="parameters">${Object.entries(PARAMETERS).map(([name, [min, max, step]]) => html`
        <label key=${name}>${name} <input type="number" min=${min} max=${max} step=${step} disabled=${settings[name] === null} value=${settings[name] ?? ""} onInput=${number(name)} /></label>
        <label class="default"><input type="checkbox" checked=${settings[name] === null} onChange=${(event) => change({ [name]: event.target.checked ? null : 1 })} /> ${t("modelDefault")}</label>`)}</div>`}
      <div class="row"><button class="primary">${t("save")}</button>
        ${!standard && html`<button type="button" onClick=${() => put({ mode: "default" })}>${t("reset")}</button>`} <span role="status">${said}</span></div>
    </form>
  `;
}

function Context({ context, shown }) {
  const compaction = useLoaded("/settings/compaction", reloads.value);
  const [enabled, enable] = useState(null);
  const compact = () => post(`${at("sessions", shown.id)}/compact`).then(() => shown.load()).catch(tell);
  const turn = async (event) => {
    const wanted = event.target.checked;
    enable(wanted); // whatever is drawn until the server has answered shows it
    try {
      const now = await send("PUT", "/settings/compaction", { enabled: wanted });
      if (now.enabled !== wanted) enable(now.enabled);
    } catch (error) {
      enable(!wanted);
      tell(error);
    }
  };
  const tools = context.parts.tools ? { [t("tools")]: context.parts.tools } : {};
  return html`
    <h2>${t("who")}</h2>
    <ol class="blocks">${context.blocks.filter((block) => block.text).map((block) => html`
      <li key=${block.id}><details><summary><b>${block.plugin || "moryflow"}</b> ${block.id} <small>${count(block.tokens)} ${t("tokens")}</small></summary><pre>${block.text}</pre></details></li>`)}</ol>
    <h2>${t("window")}</h2>
    <p>${count(context.request_tokens)}${context.window ? ` / ${count(context.window)}` : ""} ${t("tokens")} · ${t("limit")} ${count(context.limit)}</p>
    <${Bars} rows=${{ [t("system")]: context.parts.system, ...tools, [t("instructions")]: context.parts.instructions, [t("kept")]: context.parts.summary, [t("turns")]: context.parts.turns }} />
    <h3>${t("byPlugin")}</h3><${Bars} rows=${context.plugins} />
    <h2>${t("compaction")}</h2><p>${t("small")}</p>
    <div class="row"><button onClick=${compact}>${t("compact")}</button>
      ${compaction && html`<label><input type="checkbox" checked=${enabled ?? compaction.enabled} onChange=${turn} /> ${t("automatic")}</label>`}</div>
  `;
}
