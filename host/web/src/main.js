// The page: enter by the link, follow the server, draw.
import { render } from "preact";
import { effect } from "@preact/signals";
import { enter, get, TOKEN } from "./api.js";
import { App, Locked } from "./app.js";
import { html } from "./html.js";
import { unseen } from "./notify.js";
import { asking, begin, choose, health, open, sessions, tell } from "./state.js";
import { speak } from "./strings.js";

const LANGUAGE = "moryflow.language";

speak(localStorage.getItem(LANGUAGE));

/** Put `what` in the place of what stands there, at first the frame of the document. */
function show(what) {
  document.querySelector(".shell")?.remove();
  document.querySelector("noscript")?.remove();
  render(what, document.body);
}

/** Draw all of it; anew when the language is another one. */
const draw = () => show(html`<${App} key=${document.documentElement.lang} />`);

const locked = (error) => show(html`<${Locked} why=${error?.code === "code_used" ? error.message : ""} />`);

/** The session that the address names. */
const wanted = () => (/^#[\w.-]+$/.test(location.hash) ? location.hash.slice(1) : null);

/** Go where the address leads that was pasted, or gone back to; a fresh link lets in at once, and changes no session. */
async function moved() {
  if (!/[#&]code=/.test(location.hash)) return wanted() === (open.value?.id ?? null) || choose(wanted());
  const shown = open.value?.id;
  try {
    await enter();
    if (shown) history.replaceState(null, "", `#${shown}`);
    location.reload();
  } catch (error) {
    tell(error);
    if (!open.value && !sessions.value.length) locked(error);
  }
}

async function main() {
  addEventListener("hashchange", moved);
  addEventListener("storage", (event) => event.key === TOKEN && location.reload()); // another tab was let in
  const refused = await enter().then((isIn) => !isIn && {}, (error) => error);
  if (refused) return locked(refused);
  effect(() => {
    const title = sessions.value.find((one) => one.id === open.value?.id)?.title;
    document.title = `${asking.value ? "? " : unseen.value.size ? "✓ " : ""}${title ? `${title} · ` : ""}Moryflow`;
    document.querySelector("link[rel=icon]").setAttribute("href", asking.value ? "/page/asking.svg" : "/page/icon.svg");
  });
  if (wanted()) choose(wanted());
  draw(); // before the server has said anything: what is seen first is soon there
  get("/health").then((found) => {
    health.value = found;
    localStorage.setItem(LANGUAGE, found.language);
    speak(found.language);
    draw();
  }, tell);
  await begin().catch(locked);
}

main();
