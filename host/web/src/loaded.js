// What a panel shows of the server.
import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { tell } from "./state.js";

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
