// What is shown over all of it and closed again: the keys, the devices.
import { useLayoutEffect, useRef } from "preact/hooks";
import { Devices } from "./devices.js";
import { html } from "./html.js";
import { Keys, toMessage } from "./keys.js";
import { sheet } from "./state.js";
import { t } from "./strings.js";

const SHEETS = { devices: Devices, keys: Keys };

/** A click beside it closes it too. */
export function Sheet() {
  const box = useRef(null);
  const name = sheet.value;
  useLayoutEffect(() => { // at once: a key pressed meanwhile is for what is shown
    if (name) box.current.showModal();
  }, [name]);
  if (!name) return null;
  const closed = () => {
    sheet.value = "";
    toMessage();
  };
  return html`
    <dialog class="sheet" ref=${box} aria-label=${t(name)} onClose=${closed} onClick=${(event) => event.target === box.current && box.current.close()}>
      <header><h1>${t(name)}</h1><button aria-label=${t("close")} onClick=${() => box.current.close()}>×</button></header>
      <${SHEETS[name]} />
    </dialog>
  `;
}
