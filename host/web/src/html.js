// Templates: htm over Preact, so that a contributor edits what runs.
import htm from "htm";
import { Component, h } from "preact";

export const html = htm.bind(h);

/** For HTML that a library has escaped, and for nothing else: the page sets no other. */
export const policy = globalThis.trustedTypes?.createPolicy("moryflow", { createHTML: (text) => text }) ?? { createHTML: (text) => text };

/** Return the character that `&name;` means, or false; for micromark, whose own function sets HTML without the policy. */
export function decodeNamedCharacterReference(name) {
  const element = document.createElement("i");
  element.innerHTML = policy.createHTML(`&${name};`);
  const character = element.textContent;
  return character.endsWith(";") && name !== "semi" ? false : character;
}

/** Return a component that is drawn again only where its properties are not the `same`. */
export const memo = (Inner, same) =>
  class extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next);
    }

    render(props) {
      return h(Inner, props);
    }
  };
