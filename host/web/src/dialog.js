// A question of the page's own: a text, or yes or no.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { html } from "./html.js";
import { t } from "./strings.js";

const asked = signal(null);

/** Ask; the answer is the text, or "yes" where none is asked for, and "" for no. */
export const ask = (about, value) => new Promise((answer) => (asked.value = { about, value, answer }));

/** Shows the question that is asked. The browser gives the focus back to where it was. */
export function Dialog() {
  const box = useRef(null);
  const question = asked.value;
  useLayoutEffect(() => { // at once: a key pressed meanwhile is for what is shown
    if (question) box.current.showModal();
  }, [question]);
  if (!question) return null;
  const { about, value, answer } = question;
  const closed = () => {
    const { returnValue } = box.current;
    asked.value = null;
    answer(returnValue === "yes" ? (value === undefined ? "yes" : box.current.querySelector("input").value.trim()) : "");
  };
  return html`
    <dialog ref=${box} onClose=${closed} aria-label=${about}>
      <form method="dialog">
        ${value === undefined ? html`<p>${about}</p>` : html`<label>${about} <input value=${value} autofocus /></label>`}
        <div class="answers"><button class="primary" value="yes">${t(value === undefined ? "yes" : "save")}</button> <button value="no" autofocus=${value === undefined}>${t("cancel")}</button></div>
      </form>
    </dialog>
  `;
}
