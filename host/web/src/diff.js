// Text in which nothing hides, and changes as lines with numbers and + or −, not by colour alone.
import { useEffect, useState } from "preact/hooks";
import { html, policy } from "./html.js";
import { t } from "./strings.js";

// The same characters as in moryflow_sdk.support.texts; a test compares them one by one.
const UNSEEN = "[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\p{Cs}\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\p{NChar}\\u{110bd}\\u{110cd}\\u{13430}-\\u{1343f}\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]";
const MARKS = "(?<=\\p{M}{4})\\p{M}+|(?<=^|[\\0-/:-@[-`{-\\x7f])\\p{M}+|(?<=[^\\u2139\\P{L}]|[\\p{N}\\p{M}])[\\ufe0e\\ufe0f](?!\\u20e3)";
const HIDING = new RegExp(`${UNSEEN}|${MARKS}`, "gu");
const escaped = (one) => {
  const code = one.codePointAt(0);
  const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
};

/** What reorders text, cannot be seen, or reaches into other lines stands there as an escape. */
export const visible = (text) => text.replace(HIDING, (found) => [...found].map(escaped).join(""));

const KINDS = { "+": "added", "-": "removed", "@": "place" };
const MOST_CODE = 20_000; // characters of a change above which it gets no colours
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)/;
const LONG_LINE = /.{500}/;

/** Return what is known of each row of a unified diff: its kind, and its numbers before and after. */
function placed(rows) {
  const numbered = rows.some((row) => HUNK.test(row));
  let isHead = numbered; // what stands before a hunk names the file
  let numbers = null; // null after a gap, whose length is not known
  let kind = "";
  return rows.map((row, at) => {
    if (at > 0 && !rows[at - 1].endsWith("\n")) return { kind }; // the rest of a long line
    const hunk = HUNK.exec(row);
    const isOurs = numbered && !/^[-+@ \\\n]/.test(row); // the name of a file, or a gap
    if (hunk) numbers = [Number(hunk[1]), Number(hunk[2])];
    else if (isOurs) numbers = null;
    if (hunk || isOurs) isHead = isOurs && !row.startsWith("…");
    kind = isHead || isOurs ? "place" : (KINDS[row[0]] ?? "");
    if (kind === "place" || !numbers) return { kind };
    return { kind, old: kind === "added" ? null : numbers[0]++, fresh: kind === "removed" ? null : numbers[1]++ };
  });
}

/** Return the rows of a change as HTML, or null where a row has none: both sides are read as they stand in their files. */
async function colouredRows(rows, places, language) {
  const { colouredLines } = await import("./highlight.js");
  const side = (other) => colouredLines(rows.filter((_, at) => places[at].old !== undefined && places[at].kind !== other).map((row) => row.slice(1).replace(/\n$/, "")).join("\n"), language);
  const [before, after] = [side("added"), side("removed")];
  if (!before || !after) return null;
  let [one, other] = [0, 0];
  return rows.map((row, at) => {
    if (places[at].old === undefined) return null;
    const { kind } = places[at];
    const html = kind === "removed" ? before[one] : after[other];
    if (kind !== "added") one += 1;
    if (kind !== "removed") other += 1;
    return `${row[0]}${html}\n`;
  });
}

/** Show a unified diff, or any text. A long one loses its middle until it is asked for, so that neither end is out of sight. */
export function Diff({ text, most = 2000, kind = "output", path = "" }) {
  const [all, show] = useState(false);
  const [colours, colour] = useState(null);
  const rows = visible(text).match(/.{1,1000}\n?|\n/gu) ?? []; // of a line that is longer, a browser needs seconds for a megabyte
  const isDiff = kind === "output" && /^(?:@@|--- )/m.test(text);
  const places = isDiff ? placed(rows) : [];
  const language = isDiff && text.length < MOST_CODE && !LONG_LINE.test(text) ? (/\.(\w+)$/.exec(path || /^(.+\.\w+): [+]/m.exec(text)?.[1])?.[1] ?? "") : "";
  useEffect(() => {
    if (language) colouredRows(rows, places, language.toLowerCase()).then(colour, () => {});
  }, [text, language]);
  const over = all ? 0 : Math.max(0, rows.length - most);
  const first = over ? Math.ceil((most * 2) / 3) : rows.length;
  const heads = places.filter((one, at) => one.kind === "place" && HUNK.test(rows[at])).length;
  const oneFile = path && heads === 1 && places.filter((one) => one.kind === "place").length === 2; // its card names it, and numbers say where
  const line = (row, at) => {
    const { kind, old, fresh } = places[at];
    if (oneFile && kind === "place") return null;
    const known = { class: kind, "data-old": old, "data-new": fresh };
    return colours?.[at] ? html`<span ...${known} dangerouslySetInnerHTML=${{ __html: policy.createHTML(colours[at]) }}></span>` : html`<span ...${known}>${kind === "place" ? row.replace(/^vault:\//, "") : row}</span>`;
  };
  const drawn = (from, to = rows.length) => (isDiff ? rows.slice(from, to).map((row, at) => line(row, from + at)) : rows.slice(from, to).join(""));
  const numbered = places.some((one) => one.old !== undefined);
  return html`<pre class=${isDiff ? `diff${numbered ? " numbered" : ""}` : kind}>${drawn(0, first)}${over > 0 && html`<button class="gap" onClick=${() => show(true)}>${t("more")} (${over})</button>`}${drawn(first + over)}</pre>`;
}
