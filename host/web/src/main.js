// The page: enter by the link, follow the server, draw.
import { render } from "preact";
import { effect } from "@preact/signals";
import { enter, get } from "./api.js";
import { App, Locked } from "./app.js";
import { html } from "./html.js";
import { asking, begin, choose, health, open, sessions } from "./state.js";
import { speak } from "./strings.js";

speak("");
document.body.replaceChildren();

async function main() {
  const inside = await enter().catch(() => false);
  if (!inside) return render(html`<${Locked} />`, document.body);
  try {
    health.value = await get("/health");
  } catch (error) {
    if (error.status === 401) return render(html`<${Locked} />`, document.body);
  }
  speak(health.value?.language);
  effect(() => {
    const title = sessions.value.find((one) => one.id === open.value?.id)?.title;
    document.title = `${asking.value ? "? " : ""}${title ? `${title} · ` : ""}Moryflow`;
    document.querySelector("link[rel=icon]").setAttribute("href", asking.value ? "/page/asking.svg" : "/page/icon.svg");
  });
  const wanted = location.hash.slice(1);
  if (/^[\w.-]+$/.test(wanted)) choose(wanted);
  render(html`<${App} />`, document.body);
  await begin().catch(() => render(html`<${Locked} />`, document.body));
}

main();
