// A change as lines with + and −, not by colour alone; text that is no change stays as it is.
import { structuredPatch } from "diff";
import { html } from "./html.js";

const KINDS = { "+": "added", "-": "removed", "@": "place" };

/** Show a unified diff, or any text. */
export function Diff({ text }) {
  const lines = text.split("\n").slice(0, 2000);
  if (!lines.some((line) => line.startsWith("@@") || line.startsWith("--- "))) return html`<pre class="output">${text}</pre>`;
  return html`<pre class="diff">${lines.map((line) => html`<span class=${KINDS[line[0]] ?? ""}>${line}\n</span>`)}</pre>`;
}

/** Return the change from one text to another as a unified diff. */
export function between(before, after) {
  const { hunks } = structuredPatch("", "", before, after, "", "", { context: 3 });
  return hunks.flatMap((hunk) => [`@@ -${hunk.oldStart},${hunk.oldLines} +${hunk.newStart},${hunk.newLines} @@`, ...hunk.lines]).join("\n");
}
