// A proposal for the memory bank: what would change, and the two answers that decide it.
import { Diff, visible } from "./diff.js";
import { html } from "./html.js";
import { t } from "./strings.js";

/** The proposal of a call; whoever says something else later can still type the answer. */
export function Proposal({ call, args, result, shown }) {
  const nodes = shown.nodes.value;
  const made = nodes.findIndex((node) => node.kind === "tool" && node.payload.call_id === call.id);
  const passed = nodes.slice(made).some((node) => node.kind === "user");
  const marked = (mark, text = "") => text.split("\n").filter((line) => line.trim()).map((line) => `${mark} ${line}`);
  const change = [`@@ ${result.metadata.target}`, ...marked("-", args.replaces), ...marked("+", args.draft)].join("\n");
  const answer = (word) => () => shown.prompt(`mb:${word} ${result.metadata.proposal}`);
  return html`
    <section class="proposal" aria-label=${t("memory")}>
      <p><b>${t("memory")}</b></p>
      ${args.why && html`<p class="because">${t("because")}: ${visible(args.why)}</p>`}
      <${Diff} text=${change} />
      ${!passed && html`<div class="answers">
        <button onClick=${answer("write")}>${t("write")} <kbd>mb:write</kbd></button>
        <button onClick=${answer("no")}>${t("dont")} <kbd>mb:no</kbd></button>
      </div>`}
    </section>
  `;
}
