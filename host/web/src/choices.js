// Questions of a model, each with choices; several may fit, and the person's own words always do.
import { useEffect, useRef, useState } from "preact/hooks";
import { visible } from "./diff.js";
import { html } from "./html.js";
import { t } from "./strings.js";

/** `answer` gets the reply and what goes with it: the answers as {question: label, labels or words}. */
export function Choices({ questions, answer, children }) {
  const [given, give] = useState({}); // by question: its labels that are chosen
  const [words, write] = useState({});
  const refused = useRef(null);
  const [why, setWhy] = useState(null);
  useEffect(() => {
    if (why === "") refused.current?.focus();
  }, [why === ""]);
  const said = (one) => words[one.question]?.trim() || (one.multiSelect ? given[one.question] : given[one.question]?.[0]);
  const isWhole = questions.every((one) => said(one)?.length);
  const send = () => isWhole && answer("once", JSON.stringify(Object.fromEntries(questions.map((one) => [one.question, said(one)]))));
  const pick = (one, label) => {
    const before = given[one.question] ?? [];
    const now = !one.multiSelect ? [label] : before.includes(label) ? before.filter((other) => other !== label) : [...before, label];
    give({ ...given, [one.question]: now });
    write({ ...words, [one.question]: "" });
    // one question with one answer is answered by one click, or one key
    if (questions.length === 1 && !one.multiSelect) answer("once", JSON.stringify({ [one.question]: label }));
  };
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    const one = questions.find((each) => !said(each)?.length) ?? questions.at(-1);
    const option = one.options?.[Number(event.key) - 1];
    if (option) pick(one, option.label);
    else if (event.key === "Enter" && event.target === event.currentTarget) send();
    else if (event.key === "r") setWhy("");
    else if (event.key === "s") answer("stop");
    else return;
    event.preventDefault();
  };
  return html`
    <div class="choices" tabindex="-1" onKeyDown=${pressed}>
      ${children}
      ${questions.map((one) => html`
        <fieldset key=${one.question}><legend>${one.header && html`<small>${visible(one.header)}</small>`} ${visible(one.question)}</legend>
          ${(one.options ?? []).map((option, at) => html`
            <button type="button" class="option" aria-pressed=${given[one.question]?.includes(option.label) ?? false} onClick=${() => pick(one, option.label)}>
              <kbd>${at + 1}</kbd> <span>${visible(option.label)}${option.description && html`<br /><small>${visible(option.description)}</small>`}</span></button>`)}
          <input aria-label=${`${t("ownWords")}: ${one.question}`} placeholder=${t("ownWords")} value=${words[one.question] ?? ""} onInput=${(event) => write({ ...words, [one.question]: event.target.value })}
            onKeyDown=${(event) => event.key === "Enter" && !event.isComposing && (event.preventDefault(), send())} />
        </fieldset>`)}
      <div class="answers">
        <button class="primary" disabled=${!isWhole} onClick=${send}>${t("answerIt")}</button>
        <button aria-expanded=${why !== null} onClick=${() => setWhy(why === null ? "" : null)}>${t("refuse")} <kbd>r</kbd></button>
        <button class="danger" onClick=${() => answer("stop")}>${t("stop")} <kbd>s</kbd></button>
      </div>
      ${why !== null && html`<form onSubmit=${(event) => { event.preventDefault(); answer("reject", why); }}>
        <input ref=${refused} aria-label=${t("reason")} placeholder=${t("reason")} value=${why} onInput=${(event) => setWhy(event.target.value)} /><button>${t("refuse")}</button></form>`}
    </div>`;
}
