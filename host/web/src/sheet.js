// What is shown over all of it and closed again: the keys, the browsers that are let in.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Devices } from "./devices.js";
import { html } from "./html.js";
import { t } from "./strings.js";

const SHEETS = { devices: Devices };
export const sheet = signal("");

/** The browser gives the focus back to where it was; a click beside it closes it. */
export function Sheet() {
  const box = useRef(null);
  const name = sheet.value;
  useEffect(() => {
    if (name) box.current.showModal();
  }, [name]);
  if (!name) return null;
  return html`
    <dialog class="sheet" ref=${box} aria-label=${t(name)} onClose=${() => (sheet.value = "")} onClick=${(event) => event.target === box.current && box.current.close()}>
      <header><h1>${t(name)}</h1><button aria-label=${t("close")} onClick=${() => box.current.close()}>×</button></header>
      <${SHEETS[name]} />
    </dialog>
  `;
}
