// Markdown as DOM: appended while it streams, rendered once when it is whole. Never a foreign image, never a script's link.
import { micromark } from "micromark";
import { gfmAutolinkLiteral, gfmAutolinkLiteralHtml } from "micromark-extension-gfm-autolink-literal";
import { gfmStrikethrough, gfmStrikethroughHtml } from "micromark-extension-gfm-strikethrough";
import { gfmTable, gfmTableHtml } from "micromark-extension-gfm-table";
import { gfmTaskListItem, gfmTaskListItemHtml } from "micromark-extension-gfm-task-list-item";
import * as streaming from "streaming-markdown";
import { policy } from "./html.js";
import { tell } from "./state.js";
import { t } from "./strings.js";

const SAFE = /^(https?:|mailto:)/i;
/** After a definition, or the line of a list's item, micromark swallows the line endings of code and of HTML. */
function keepLines() {
  this.setData("slurpAllLineEndings");
}
const OPTIONS = {
  extensions: [gfmAutolinkLiteral(), gfmStrikethrough(), gfmTable(), gfmTaskListItem()],
  // The last one leaves a row as short as it is: filled up, a table of 150 KB becomes one of 50 million cells.
  htmlExtensions: [gfmAutolinkLiteralHtml(), gfmStrikethroughHtml(), gfmTableHtml(), gfmTaskListItemHtml(), { enter: { codeFencedFence: keepLines, codeFlowValue: keepLines, htmlFlowData: keepLines }, exit: { tableRow() { this.tag("</tr>"); } } }],
};
/** Milliseconds after which the rest of a text is shown as it is. The page does nothing else meanwhile. */
const PATIENCE = 1500;
/**
 * The time of micromark grows with the square of what it gets: 50 KB of quotes take half a minute. So it gets a text by
 * pieces, and the parser of the stream gets what is longer or deeper.
 */
const PIECE = 500;
const LONG = 4_000;
/** Characters above which a piece is shown as it is: nobody reads a book in a bubble. */
const LONGEST = 400_000;
/** Characters that may wait for the end of a link, read again with each that comes; after them all is shown as it is. */
const WAITING = 4_000;
const DEEP = /^[ \t]*(?:>[ \t]*|(?:[-+*]|\d{1,9}[.)])[ \t]+){16}/m;
/** Columns of a table, and elements in one another; what is in more of them stands in the last one. */
const COLUMNS = 100;
const NESTED = 50;
/** Characters of code, and of one of its lines, above which it gets no colours: the time for these grows with the square. */
const MOST_CODE = 20_000;
const LONG_LINE = /.{500}/;

/** Put `text`, which is whole, into `element`. */
export function render(element, text) {
  const began = performance.now();
  const { content } = document.createElement("template"); // whose images ask for nothing
  const definitions = definitionsOf(text, began + PATIENCE / 3);
  for (const piece of pieces(text)) {
    if (piece.length > LONGEST || performance.now() - began > PATIENCE) {
      content.append(Object.assign(document.createElement("pre"), { textContent: piece }));
    } else if (piece.length > LONG || DEEP.test(piece)) {
      const streamed = stream(content);
      streamed.add(piece);
      streamed.end();
    } else {
      const template = document.createElement("template");
      template.innerHTML = policy.createHTML(micromark(`${definitionsFor(piece, definitions)}\n\n${piece}`, OPTIONS));
      content.append(template.content);
    }
  }
  for (const image of content.querySelectorAll("img")) image.replaceWith(linkOf(image.getAttribute("src") || "", image.alt));
  for (const link of content.querySelectorAll("a")) outside(link);
  for (const box of content.querySelectorAll("input")) box.setAttribute("aria-label", box.checked ? "done" : "open");
  for (const code of content.querySelectorAll("code[class]")) code.className = code.classList[0]; // a model may name more, that are the page's own
  for (const code of content.querySelectorAll("pre > code[class^=language-]")) if (code.textContent.length < MOST_CODE && !LONG_LINE.test(code.textContent)) seen.observe(code);
  if (navigator.clipboard) for (const block of content.querySelectorAll("pre:has(> code)")) block.append(copying());
  element.replaceChildren(...content.childNodes);
}

/** Yield Markdown by pieces: one ends at an empty line, where the line after it belongs to no list and no code; a long one, at an item. */
function* pieces(text) {
  let piece = [];
  let size = 0;
  let fence = "";
  let empty = false;
  for (const line of text.split(/(?<=\n)/)) {
    const isItem = /^(?:[-+*]|\d{1,9}[.)])[ \t]+\S/.test(line) && (empty || !/^\d/.test(line));
    const isNew = empty && !/^(?:[ \t]|[-+*][ \t\r\n]|\d{1,9}[.)])/.test(line);
    if (!fence && ((isNew && size > PIECE) || (isItem && size > LONG / 2))) {
      yield piece.join("");
      piece = [];
      size = 0;
    }
    const [, mark = "", after = ""] = /^[ \t]*(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})(.*)/.exec(line) ?? [];
    if (!fence) fence = mark[0] === "`" && after.includes("`") ? "" : mark;
    else if (mark.startsWith(fence) && !after.trim()) fence = "";
    empty = !line.trim();
    piece.push(line);
    size += line.length;
  }
  yield piece.join("");
}

const named = (label) => label.trim().replace(/\s+/g, " ").toLowerCase();

/** Return the lines of `text` that define an address, by the name that links in any piece use for it; those found `until` then. */
function definitionsOf(text, until) {
  const found = new Map();
  for (const [line, label] of text.matchAll(/^ {0,3}\[([^[\]\n]+)\]:.{1,1000}$/gm)) {
    if (found.size === 1000 || performance.now() > until) break;
    if (!found.has(named(label)) && !micromark(line)) found.set(named(label), line); // `[INFO]: it runs` defines nothing
  }
  return found;
}

/** Return the `definitions` of the names in `piece`, as Markdown that shows nothing. */
function definitionsFor(piece, definitions) {
  const names = new Set([...piece.matchAll(/\[([^[\]]+)\]/g)].map(([, label]) => named(label)));
  let size = 0;
  return [...names].map((name) => definitions.get(name) ?? "").filter((line) => (size += line.length) < LONG).join("\n");
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
  const { add_token: begin, end_token: end, set_attr: set } = renderer;
  const ends = []; // of the open tokens; a dollar is text
  renderer.add_token = (data, type) => {
    const within = data.nodes[data.index];
    if (data.index >= NESTED) data.nodes[++data.index] = within; // a browser's tab ends at some thousands
    else if (type === streaming.TABLE_CELL && within.childElementCount >= COLUMNS) data.nodes[++data.index] = within.lastElementChild;
    else begin(data, type === streaming.IMAGE ? streaming.LINK : type); // an image would be asked for from another host
    ends.push(type === streaming.EQUATION_INLINE ? "$" : type === streaming.EQUATION_BLOCK ? "$$" : "");
    data.nodes[data.index].append(ends.at(-1));
  };
  renderer.end_token = (data) => {
    const mark = ends.pop();
    if (/^[$\\]/.test(parser.pending)) data.nodes[data.index].append(mark); // else the line ended first
    end(data);
  };
  renderer.set_attr = (data, type, value) => {
    if (type === streaming.LANG) set(data, type, `language-${value.split(/\s/)[0]}`);
    else if (type === streaming.HREF || type === streaming.SRC) {
      set(data, streaming.HREF, value);
      outside(data.nodes[data.index]);
    } else set(data, type, value);
  };
  const parser = streaming.parser(renderer);
  const write = (text) => (parser.pending.length > WAITING ? element.append(text) : streaming.parser_write(parser, text));
  const add = (text) => {
    for (let at = 0; at < text.length; at += WAITING) write(text.slice(at, at + WAITING));
  };
  return { add, end: () => streaming.parser_end(parser) };
}
