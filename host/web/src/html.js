// Templates: htm over Preact, so that a contributor edits what runs.
import htm from "htm";
import { Component, h } from "preact";

export const html = htm.bind(h);

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
