// The browsers and programs that are let in, each with a token of its own.
import { useState } from "preact/hooks";
import { at, send } from "./api.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { tell } from "./state.js";
import { t, when } from "./strings.js";

export function Devices() {
  const [changes, changed] = useState(0);
  const tokens = useLoaded("/tokens", changes) ?? [];
  const revoke = (id) => () => send("DELETE", at("tokens", id)).then(() => changed(changes + 1), tell);
  return html`
    <h2>${t("letIn")}</h2>
    <ul class="tokens">${tokens.map((one) => html`
      <li key=${one.id}><span><b>${one.name}</b>${one.here ? ` · ${t("here")}` : ""}<br /><small>${one.id} · ${t("used")} ${when(one.used)}</small></span>
        <button class="danger" aria-label=${`${t("revoke")}: ${one.name} ${one.id}`} onClick=${revoke(one.id)}>${t("revoke")}</button></li>`)}</ul>
  `;
}
