// A button that opens a menu over everything else; the browser closes it by Escape and by a click beside it.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

/** `items` are [words, what it does, class]. */
export function Menu({ label, items }) {
  const [spot, open] = useState(null);
  const box = useRef(null);
  useLayoutEffect(() => {
    if (!spot) return;
    const menu = box.current;
    menu.showPopover();
    menu.style.left = `${Math.max(8, Math.min(spot.left, innerWidth - menu.offsetWidth - 8))}px`;
    menu.style.top = `${Math.min(spot.bottom + 2, innerHeight - menu.offsetHeight - 8)}px`;
    menu.firstElementChild.focus();
  }, [spot]);
  const pressed = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...box.current.children];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  };
  return html`
    <button class="more" aria-label=${label} aria-haspopup="menu" aria-expanded=${Boolean(spot)} onClick=${(event) => open(event.currentTarget.getBoundingClientRect())}>⋯</button>
    ${spot && html`<div class="menu" role="menu" popover ref=${box} aria-label=${label} onKeyDown=${pressed} onToggle=${(event) => event.newState === "closed" && open(null)}>
      ${items.map(([words, act, kind = ""]) => html`<button role="menuitem" class=${kind} onClick=${() => { box.current.hidePopover(); act(); }}>${words}</button>`)}</div>`}
  `;
}
