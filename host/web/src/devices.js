// From a phone: a link as a picture, the ways there, and the browsers and programs that are let in.
import { useEffect, useState } from "preact/hooks";
import { at, post, send } from "./api.js";
import { when } from "./days.js";
import { html } from "./html.js";
import { useLoaded } from "./loaded.js";
import { tell } from "./state.js";
import { t } from "./strings.js";

const isHere = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);

export function Devices() {
  const [changes, changed] = useState(0);
  const tokens = useLoaded("/tokens", changes) ?? [];
  const revoke = (id) => () => send("DELETE", at("tokens", id)).then(() => changed(changes + 1), tell);
  return html`
    <${Link} />
    <p>${t(isHere ? "onlyHere" : "fromThere")}</p>
    ${isHere && html`<dl class="ways"><dt>Tailscale</dt><dd><code>moryflow serve --insecure --host $(tailscale ip -4)</code><br /><small>${t("tailscale")}</small></dd>
      <dt>ssh</dt><dd><code>ssh -L ${location.port}:127.0.0.1:${location.port} HOST</code><br /><small>${t("tunnel")}</small></dd></dl>`}
    <h2>${t("letIn")}</h2>
    <ul class="tokens">${tokens.map((one) => html`
      <li key=${one.id}><span><b>${one.name}</b>${one.here ? ` · ${t("here")}` : ""}<br /><small>${one.id} · ${t("used")} ${when(one.used)}</small></span>
        <button class="danger" aria-label=${`${t("revoke")}: ${one.name} ${one.id}`} onClick=${revoke(one.id)}>${t("revoke")}</button></li>`)}</ul>
  `;
}

/** A one-time link, for the address by which this page was reached, which need not be the one that the server knows. */
function Link() {
  const [made, make] = useState(null);
  useEffect(() => {
    Promise.all([post("/codes"), import("lean-qr")]).then(([{ code }, { generate }]) => {
      const link = `${location.origin}/#code=${code}`;
      make({ link, bits: generate(link) });
    }, tell);
  }, []);
  if (!made) return html`<div class="qr"></div>`;
  const { size } = made.bits;
  const path = Array.from({ length: size * size }, (_, at) => [at % size, Math.floor(at / size)]).filter(([x, y]) => made.bits.get(x, y)).map(([x, y]) => `M${x} ${y}h1v1h-1z`).join("");
  return html`
    <div class="qr"><svg viewBox=${`-4 -4 ${size + 8} ${size + 8}`} role="img" aria-label=${t("qr")}><path d=${path} /></svg></div>
    <p class="link"><code>${made.link}</code><br /><small>${t("oneTime")}</small></p>`;
}
