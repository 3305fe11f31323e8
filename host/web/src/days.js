// Moments in the words of a person.
import { t } from "./strings.js";

/** Return the time of day for what was today, the day for what was before. */
export function when(stamp) {
  const date = new Date(stamp);
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString(document.documentElement.lang, today ? { hour: "numeric", minute: "2-digit" } : { year: "numeric", month: "short", day: "numeric" });
}

/** Return the day under which a moment is listed. */
export function dayOf(stamp) {
  const date = new Date(stamp);
  const ago = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(stamp).setHours(0, 0, 0, 0)) / 86_400_000);
  if (ago < 7) return t(ago < 1 ? "today" : ago < 2 ? "yesterday" : "week");
  return date.toLocaleString(document.documentElement.lang, { year: "numeric", month: "long" });
}
