// Lists to choose from while one types: names that fit, the best first, and a button that opens such a list.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

const MOST = 50;

/** How well `name` fits what is typed, the less the better: its beginning, a part, letters in their order; null if not. */
function distance(name, typed) {
  const at = name.indexOf(typed);
  if (at >= 0) return at === 0 ? 0 : 1 + at;
  let place = -1;
  for (const letter of typed) if ((place = name.indexOf(letter, place + 1)) < 0) return null;
  return 1000 + place;
}

/** Return those of `rows` ({id, about}) whose id fits; equally good ones stay in their order. */
export function fitting(rows, typed) {
  const wanted = typed.toLowerCase();
  const measured = rows.map((row) => [distance(row.id.toLowerCase(), wanted), row]).filter(([far]) => far !== null);
  return measured.sort(([one], [other]) => one - other).slice(0, MOST).map(([, row]) => row);
}

/** Return what a key does to a list: the place it moves to, "take", "close", or null. */
export function keyIn(event, count, place) {
  if (event.isComposing || !count) return null;
  if (event.key === "ArrowDown") return (place + 1) % count;
  if (event.key === "ArrowUp") return (place + count - 1) % count;
  return { Enter: "take", Tab: "take", Escape: "close" }[event.key] ?? null;
}

/** The list; it never takes the focus from where one types. */
export function Names({ id, label, rows, picked, onTake, mark = "" }) {
  const box = useRef(null);
  useEffect(() => box.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [picked]);
  return html`<ul class="names" role="listbox" tabindex="0" id=${id} aria-label=${label} ref=${box}>${rows.map((row, at) => html`
    <li role="option" id=${`${id}-${at}`} key=${row.id} aria-selected=${at === picked} onMouseDown=${(event) => { event.preventDefault(); onTake(row); }}>
      <b>${mark}${row.id}</b>${row.about && html` <small>${row.about}</small>`}</li>`)}</ul>`;
}

/** A button with what is chosen; it opens a list with a filter. With `free`, what is typed may be chosen too. */
export function Picker({ name, label, value, rows, free = false, onPick }) {
  const [typed, type] = useState(null); // null while it is closed
  const [picked, pick] = useState(0);
  const box = useRef(null);
  const open = typed !== null;
  useEffect(() => {
    if (open) box.current.querySelector("input").focus();
  }, [open]);
  const found = open ? fitting(rows, typed) : [];
  if (open && free && typed && !found.some((row) => row.id === typed)) found.push({ id: typed });
  const take = (row) => {
    type(null);
    if (row) onPick(row.id);
    document.getElementById("message")?.focus();
  };
  const pressed = (event) => {
    const done = keyIn(event, found.length, picked);
    if (done === null && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    if (typeof done === "number") pick(done);
    else take(done === "take" ? found[picked] : null);
  };
  return html`
    <span class=${`picker ${name}`} ref=${box} onFocusOut=${(event) => !box.current.contains(event.relatedTarget) && type(null)}>
      <button type="button" class="choice" aria-haspopup="listbox" aria-expanded=${open} aria-label=${`${label}: ${value}`} title=${label} onClick=${() => { pick(0); type(open ? null : ""); }}>${value}</button>
      ${open && html`<div class="pop"><input role="combobox" aria-expanded="true" aria-controls=${`${name}-names`} aria-activedescendant=${found.length ? `${name}-names-${picked}` : null}
        aria-label=${label} placeholder=${label} value=${typed} autocomplete="off" onInput=${(event) => { pick(0); type(event.target.value); }} onKeyDown=${pressed} />
        <${Names} id=${`${name}-names`} label=${label} rows=${found} picked=${picked} onTake=${take} /></div>`}
    </span>`;
}
