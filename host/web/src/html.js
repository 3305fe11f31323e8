// Templates: htm over Preact, so that a contributor edits what runs.
import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
