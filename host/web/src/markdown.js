// Markdown as DOM: appended while it streams, rendered once when it is whole. Never a foreign image, never a script's link.
import { micromark } from "micromark";
import { gfmAutolinkLiteral, gfmAutolinkLiteralHtml } from "micromark-extension-gfm-autolink-literal";
import { gfmStrikethrough, gfmStrikethroughHtml } from "micromark-extension-gfm-strikethrough";
import { gfmTable, gfmTableHtml } from "micromark-extension-gfm-table";
import { gfmTaskListItem, gfmTaskListItemHtml } from "micromark-extension-gfm-task-list-item";
import * as streaming from "streaming-markdown";
import { tell } from "./state.js";
import { t } from "./strings.js";

const SAFE = /^(https?:|mailto:)/i;
// micromark escapes HTML and empties links of other kinds itself; this policy is for its output alone.
const policy = globalThis.trustedTypes?.createPolicy("moryflow", { createHTML: (html) => html }) ?? { createHTML: (html) => html };
const OPTIONS = {
  extensions: [gfmAutolinkLiteral(), gfmStrikethrough(), gfmTable(), gfmTaskListItem()],
  htmlExtensions: [gfmAutolinkLiteralHtml(), gfmStrikethroughHtml(), gfmTableHtml(), gfmTaskListItemHtml()],
};
/** Characters above which text is shown as it is: nobody reads a book in a bubble. */
const LONGEST = 400_000;
/** Characters of code above which it gets no colours. */
const MOST_CODE = 100_000;

/** Put `text`, which is whole, into `element`. */
export function render(element, text) {
  if (text.length > LONGEST) {
    const plain = document.createElement("pre");
    plain.textContent = text;
    element.replaceChildren(plain);
    return;
  }
  const template = document.createElement("template");
  template.innerHTML = policy.createHTML(micromark(text, OPTIONS));
  for (const image of template.content.querySelectorAll("img")) image.replaceWith(linkOf(image.getAttribute("src") || "", image.alt));
  for (const link of template.content.querySelectorAll("a")) outside(link);
  for (const box of template.content.querySelectorAll("input")) box.setAttribute("aria-label", box.checked ? "done" : "open");
  for (const code of template.content.querySelectorAll("pre > code[class^=language-]")) if (code.textContent.length < MOST_CODE) seen.observe(code);
  if (navigator.clipboard) for (const block of template.content.querySelectorAll("pre")) block.append(copying());
  element.replaceChildren(template.content);
}

/** Return a button that copies the code it stands in. */
function copying() {
  const button = Object.assign(document.createElement("button"), { className: "copy", textContent: t("copy") });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent).catch(tell);
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = t("copy")), 1500);
  });
  return button;
}

/** Colours code when it comes into view and there is time. */
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    requestIdleCallback(async () => {
      const { coloured } = await import("./highlight.js");
      const html = coloured(target.textContent, target.className.slice("language-".length));
      if (html !== null) target.innerHTML = policy.createHTML(html);
    });
  }
});

function linkOf(address, text) {
  const link = document.createElement("a");
  link.textContent = text || address;
  link.setAttribute("href", address);
  return link;
}

function outside(link) {
  if (!SAFE.test(link.getAttribute("href") || "")) link.removeAttribute("href");
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
}

/** Return a function that appends what comes to `element`, and one that ends it. */
export function stream(element) {
  const renderer = streaming.default_renderer(element);
  const set = renderer.set_attr;
  renderer.set_attr = (data, type, value) => {
    if (type === streaming.HREF && !SAFE.test(value)) return;
    if (type === streaming.SRC) return; // an image would be asked for from another host
    set(data, type, value);
  };
  const parser = streaming.parser(renderer);
  return { add: (text) => streaming.parser_write(parser, text), end: () => streaming.parser_end(parser) };
}
