// What a panel shows of the server.
import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { reloads, tell } from "./state.js";

const kept = new Map(); // by path: {at, value}

/** Return what is at `path`, anew when one of `when` changes. */
export function useLoaded(path, ...when) {
  const [value, set] = useState(null);
  useEffect(() => {
    let wanted = true;
    get(path).then((found) => wanted && set(found), tell);
    return () => (wanted = false);
  }, [path, ...when]);
  return value;
}

/** Return what is at `path` and changes with a reload only: it is asked for once. */
export function useKept(path) {
  const [value, set] = useState(kept.get(path)?.value ?? null);
  const now = reloads.value;
  useEffect(() => {
    if (kept.get(path)?.at === now) return set(kept.get(path).value);
    get(path).then((found) => {
      kept.set(path, { at: now, value: found });
      set(found);
    }, tell);
  }, [path, now]);
  return value;
}
