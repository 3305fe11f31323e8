// Tells that a turn has ended or asks, while nobody looks: by the system where it was allowed, in the title else.
import { signal } from "@preact/signals";
import { choose, listeners, open, sessions } from "./state.js";
import { t } from "./strings.js";

export const allowed = signal(globalThis.Notification?.permission ?? "");
export const unseen = signal(new Set()); // sessions whose turn has ended since somebody looked

/** Ask for leave to notify: browsers want a click for it. */
export const allow = async () => (allowed.value = await Notification.requestPermission());

const looking = (session) => document.hasFocus() && !document.hidden && open.value?.id === session;

export function seeNow() {
  const id = open.value?.id;
  if (!id || !unseen.value.has(id) || !looking(id)) return;
  unseen.value = new Set([...unseen.value].filter((one) => one !== id));
}
for (const kind of ["focus", "visibilitychange", "pointerdown"]) addEventListener(kind, seeNow);
open.subscribe(() => setTimeout(seeNow));

listeners.add(({ type, session, parent, end_reason }) => {
  const asks = type === "permission.asked";
  if (!(asks || (type === "turn.finish" && !parent)) || looking(session)) return;
  if (!asks) unseen.value = new Set([...unseen.value, session]);
  if (allowed.value !== "granted" || (document.hasFocus() && !document.hidden)) return;
  try {
    const title = sessions.value.find((row) => row.id === session)?.title || t("untitled");
    const said = new Notification(title, { body: asks ? t("question") : `${t("turnEnded")}: ${t(`end_${end_reason}`)}`, tag: session, icon: "/page/icon.svg" });
    said.onclick = () => {
      focus();
      choose(session);
      said.close();
    };
  } catch {
    allowed.value = "denied"; // a phone's browser has the name and forbids to use it; the title tells it there
  }
});
