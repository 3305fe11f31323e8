// Text in which nothing hides, and changes as lines with + and −, not by colour alone.
import { useState } from "preact/hooks";
import { html } from "./html.js";
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

/** Show a unified diff, or any text. A long one loses its middle until it is asked for, so that neither end is out of sight. */
export function Diff({ text, most = 2000, kind = "output" }) {
  const [all, show] = useState(false);
  const rows = visible(text).match(/.{1,1000}\n?|\n/gu) ?? []; // of a line that is longer, a browser needs seconds for a megabyte
  const isDiff = kind === "output" && /^(?:@@|--- )/m.test(text);
  const over = all ? 0 : Math.max(0, rows.length - most);
  const first = over ? Math.ceil((most * 2) / 3) : rows.length;
  const kindOf = (at) => (at === 0 || rows[at - 1].endsWith("\n") ? KINDS[rows[at][0]] : undefined) ?? "";
  const drawn = (from, to) => {
    const some = rows.slice(from, to);
    return isDiff ? some.map((row, at) => html`<span class=${kindOf(from + at)}>${row}</span>`) : some.join("");
  };
  return html`<pre class=${isDiff ? "diff" : kind}>${drawn(0, first)}${over > 0 && html`<button class="gap" onClick=${() => show(true)}>${t("more")} (${over})</button>`}${drawn(first + over)}</pre>`;
}
