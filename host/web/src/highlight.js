// Colours for code, fetched with the first block that is seen; what is long stays plain.
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = { bash, c, diff, go, ini, java, javascript, json, python, rust, shell, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);

/** Return the lines of `text` as escaped HTML each: what is open at the end of one goes on in the next. Null as below. */
export function colouredLines(text, language) {
  const open = [];
  return coloured(text, language)?.split("\n").map((line) => {
    const begin = open.join("");
    for (const [tag] of line.matchAll(/<span [^>]*>|<\/span>/g)) tag[1] === "/" ? open.pop() : open.push(tag);
    return `${begin}${line}${"</span>".repeat(open.length)}`;
  }) ?? null;
}

/** Return `text` as escaped HTML with spans, or null where the language is not known. */
export const coloured = (text, language) => (hljs.getLanguage(language) ? hljs.highlight(text, { language, ignoreIllegals: true }).value : null);
