// Figures of a session and of this home as small plots, each with its number.
import { at } from "./api.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { t } from "./strings.js";

export const count = (value) => (value ?? 0).toLocaleString(document.documentElement.lang);
const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);
const share = (part) => `${Math.round(part * 1000) / 10} %`;

/** Figures as bars. */
export function Bars({ rows, unit = "" }) {
  const shown = Object.entries(rows).filter(([, value]) => value > 0);
  if (!shown.length) return html`<p class="none">–</p>`;
  const most = Math.max(...shown.map(([, value]) => value));
  return html`<table class="bars"><tbody>${shown.map(([name, value]) => html`
    <tr key=${name}><th scope="row">${name}</th><td><${Bar} parts=${[["all", value]]} most=${most} /></td><td>${count(value)} ${unit}</td></tr>`)}</tbody></table>`;
}

/** One bar of coloured parts; the figures stand beside it. */
function Bar({ parts, most }) {
  let from = 0;
  return html`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">${parts.map(([name, value]) => {
    const width = (100 * value) / Math.max(1, most);
    const rect = html`<rect class=${name} x=${from} width=${width} height="8" />`;
    from += width;
    return rect;
  })}</svg>`;
}

/** A column for each turn. */
function Columns({ values, label }) {
  const most = Math.max(1, ...values);
  return html`<svg class="columns" viewBox=${`0 0 ${values.length * 10} 40`} role="img" aria-label=${`${label}: ${values.map(count).join(", ")}`}>
    ${values.map((value, index) => html`<rect x=${index * 10 + 1} width="8" y=${40 - (38 * value) / most} height=${(38 * value) / most}><title>${count(value)}</title></rect>`)}</svg>`;
}

/** A part of a whole, as a bar and in per cent. */
const Share = ({ name, part }) => html`<tr><th scope="row">${name}</th><td><${Bar} parts=${[["all", part]]} most=${1} /></td><td>${share(part)}</td></tr>`;

function Calls({ tools, intercepted }) {
  const rows = Object.entries(tools).map(([name, states]) => ({ name, states, asked: intercepted[name]?.asked ?? 0 }));
  const most = Math.max(1, ...rows.map((row) => sum(row.states)));
  const parts = ({ completed = 0, refused = 0, error = 0, interrupted = 0 }) => [["completed", completed], ["refused", refused], ["error", error + interrupted]];
  return html`<table class="bars"><tbody>${rows.map(({ name, states, asked }) => html`
    <tr key=${name}><th scope="row">${name}</th><td><${Bar} parts=${parts(states)} most=${most} /></td>
      <td>${sum(states)}<small>${parts(states).filter(([kind, value]) => kind !== "completed" && value).map(([kind, value]) => ` · ${value} ${t(kind === "error" ? "error" : "denied")}`)}${asked ? ` · ${asked} ${t("asked")}` : ""}</small></td></tr>`)}</tbody></table>`;
}

export function Stats({ shown }) {
  const own = useLoaded(`${at("sessions", shown.id)}/stats`, shown.last.value);
  const home = useLoaded("/stats?limit=20", shown.last.value);
  if (!own) return null;
  const turns = (shown.row.value?.turns ?? []).filter((turn) => turn.purpose !== "compact").slice(-40);
  const { summaries, searches, outputs, mcp, questions } = own;
  const figure = (name, value) => html`<dt>${name}</dt><dd>${value}</dd>`;
  return html`
    <dl class="figures">
      ${figure(t("turns"), count(own.turns))}${figure(t("steps"), count(own.steps))}
      ${figure(t("tokens"), `${count(own.usage.input)} → ${count(own.usage.output)}${own.usage.cached ? ` (${count(own.usage.cached)} ${t("cached")})` : ""}`)}
      ${figure(t("cost"), `$${own.cost}`)}
      ${figure(t("asked"), `${questions.asked} · ${questions.waited_seconds} s`)}
      ${figure(t("falseAlarms"), ["always", "exact", "preset"].reduce((sum, one) => sum + (questions.answers[one] ?? 0), 0))}
      ${figure(t("children"), own.sub_agents.sessions)}
      ${figure(t("instructions"), `${own.instructions.files} · ${count(own.instructions.tokens)} ${t("tokens")}`)}
      ${figure(t("summaries"), `${summaries.made} · ${summaries.undone} ${t("undone")} · ${summaries.completed_after}/${summaries.turns_after} ${t("wentOn")}`)}
      ${figure(t("truncated"), `${outputs.cut}/${outputs.shown}`)}
      ${figure(t("searches"), `${searches.hits} ${t("hits")} · ${searches.misses} ${t("misses")}`)}
      ${figure("MCP", `${mcp.calls} · ${mcp.cut} ${t("truncated")}`)}
    </dl>
    ${turns.length > 1 && html`<h2>${t("perTurn")}</h2><${Columns} label=${t("perTurn")} values=${turns.map((turn) => (turn.usage.input ?? 0) + (turn.usage.output ?? 0))} />`}
    <h2>${t("shares")}</h2>
    <table class="bars"><tbody><${Share} name=${t("children")} part=${own.sub_agents.share} /><${Share} name=${t("instructions")} part=${own.instructions.share} /><${Share} name="MCP" part=${mcp.share} /></tbody></table>
    <h2>${t("calls")}</h2><${Calls} tools=${own.tools} intercepted=${own.intercepted} />
    <h2>${t("hooks")}</h2><${Bars} rows=${Object.fromEntries(Object.entries(own.hooks).map(([hook, row]) => [hook, row.ms]))} unit="ms" />
    <h2>${t("events")}</h2><${Bars} rows=${own.events} />
    ${home && html`<h2>${t("home")}</h2><dl class="figures">
      ${figure(t("running"), home.running)}${figure(t("clients"), home.clients)}
      ${figure(t("onboarding"), home.onboarding_seconds === null ? "–" : `${home.onboarding_seconds} s`)}</dl>
      <h3>${t("perSession")}</h3><${Columns} label=${t("perSession")} values=${home.sessions.map((one) => one.usage.input + one.usage.output).reverse()} />`}
  `;
}
