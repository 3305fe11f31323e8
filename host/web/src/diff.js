// A change as lines with + and −, not by colour alone; text that is no change stays as it is.
import { html } from "./html.js";

const KINDS = { "+": "added", "-": "removed", "@": "place" };

/** Show a unified diff, or any text. */
export function Diff({ text }) {
  const lines = text.split("\n").slice(0, 2000);
  if (!lines.some((line) => line.startsWith("@@") || line.startsWith("--- "))) return html`<pre class="output">${text}</pre>`;
  return html`<pre class="diff">${lines.map((line) => html`<span class=${KINDS[line[0]] ?? ""}>${line}\n</span>`)}</pre>`;
}
