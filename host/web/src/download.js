// Saves what the server has as a file of the person's.
import { send } from "./api.js";

export async function save(path, name) {
  const data = await (await send("GET", path, undefined, { raw: true })).blob();
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(data), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
