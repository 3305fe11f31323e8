// The page: enter by the link, follow the server, draw.
import { render } from "preact";
import { effect } from "@preact/signals";
import { enter, get } from "./api.js";
import { App, Locked } from "./app.js";
import { html } from "./html.js";
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

const locked = () => show(html`<${Locked} />`);

async function main() {
  if (!(await enter().catch(() => false))) return locked();
  effect(() => {
    const title = sessions.value.find((one) => one.id === open.value?.id)?.title;
    document.title = `${asking.value ? "? " : ""}${title ? `${title} · ` : ""}Moryflow`;
    document.querySelector("link[rel=icon]").setAttribute("href", asking.value ? "/page/asking.svg" : "/page/icon.svg");
  });
  const wanted = location.hash.slice(1);
  if (/^[\w.-]+$/.test(wanted)) choose(wanted);
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
