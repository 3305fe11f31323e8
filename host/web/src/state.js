// What the page knows, as signals; and what each event changes in it.
import { batch, computed, signal } from "@preact/signals";
import { at, follow, get, post, send } from "./api.js";
import { ask } from "./dialog.js";
import { t } from "./strings.js";

export const health = signal(null);
export const online = signal(true);
export const sessions = signal([]);
export const approvals = signal([]); // open questions of all sessions
export const open = signal(null); // the session that is shown, see Shown
export const panel = signal(""); // what stands beside it
export const sheet = signal(""); // what is shown over all of it
export const notice = signal("");
export const running = signal(new Set()); // sessions with a turn at work, here or in a terminal
export const reloads = signal([]); // what was loaded anew while this tab was open, the last one first

let lastId = null;

/** A session on the screen, or a sub-agent inside one. */
export class Shown {
  constructor(id) {
    this.id = id;
    this.row = signal(null);
    this.nodes = signal([]);
    this.more = signal(false);
    this.status = signal("idle");
    this.here = signal(false);
    this.calls = signal({}); // by call: what is known of one that has no result yet
    this.progress = signal({}); // by call: what a tool says while it runs
    this.live = signal(null); // the message that is being written: {id, text, reasoning}
    this.sinks = new Set(); // who appends text as it comes
    this.last = signal(null); // how the last turn ended
    this.turns = signal([]);
    this.filled = signal(null); // tokens of the last request
    this.effort = signal(null); // how long the model reasons; `chosen` goes along with the next prompt
    this.chosen = null;
    this.outcomes = signal({ calls: {}, compactions: {}, errors: {} }); // times, sizes and errors of what is over
    this.doing = signal(""); // what is said in place of "thinks"
    this.children = signal([]); // sub-agents at work
    this.wanted = signal(""); // the node that a search leads to
    this.queue = signal(JSON.parse(localStorage.getItem(`queue.${id}`) || "[]"));
    this.labels = signal({});
    this.fetching = null;
    this.told = 0; // how often an event said whether a turn runs, here or in a sub-agent
    this.saidIdle = false; // what the last one said
    this.loading = null;
  }

  /** Load everything anew. */
  async load() {
    const { told, calls: { value: before } } = this;
    const writing = this.live.value?.id;
    const had = new Set(this.nodes.value.map((node) => node.id));
    const snapshot = await get(`${at("sessions", this.id)}?limit=200`);
    if (told !== this.told) return this.load(); // a turn began or ended meanwhile: nothing would say so again
    batch(() => {
      this.row.value = snapshot;
      const older = this.nodes.value.findIndex((node) => node.id === snapshot.nodes[0]?.id);
      // What was fetched of the path before it stays: a node has one past.
      const end = this.nodes.value.findIndex((node) => node.id === snapshot.nodes.at(-1)?.id);
      const fresh = this.nodes.value.slice(end + 1); // nodes that came after the snapshot was made stay too
      this.nodes.value = [...this.nodes.value.slice(0, Math.max(0, older)), ...snapshot.nodes, ...(end >= 0 && !had.has(fresh[0]?.id) ? fresh : [])];
      if (older <= 0) this.more.value = snapshot.more;
      this.labels.value = snapshot.labels;
      this.status.value = snapshot.status === "idle" ? "idle" : "busy";
      this.here.value = snapshot.here;
      this.turns.value = snapshot.turns;
      this.effort.value = this.chosen ?? snapshot.effort;
      const ended = snapshot.turns.findLast((turn) => turn.purpose !== "compact");
      this.last.value = ended?.state === "ended" ? { turn: ended.id, end_reason: ended.end_reason } : null;
      const waiting = new Set(snapshot.approvals.map((one) => one.call_id));
      const newer = Object.entries(this.calls.value).filter(([id, call]) => call !== before[id]); // what events said while the snapshot came
      this.calls.value = Object.fromEntries([
        ...snapshot.calls.map((call) => [call.id, { tool: call.tool, args: parsed(call.args), state: waiting.has(call.id) ? "waiting" : call.state, since: Date.parse(call.updated) }]),
        ...newer,
      ]);
      this.children.value = [...new Set([...snapshot.working, ...snapshot.approvals.map((one) => one.session).filter((id) => id !== this.id)])];
      const { partial } = snapshot;
      const begun = this.live.value?.id;
      if (!begun || begun === writing || begun === partial?.message_id) // else its message began after the snapshot
        this.live.value = partial && (partial.text || partial.reasoning) ? { id: partial.message_id, ...partial } : null;
      approvals.value = merged(approvals.value, snapshot.approvals);
    });
    this.measure();
    if (this.status.value === "idle") this.sendNext();
    else if (this.saidIdle) this.loadSoon(); // the end is told a moment before it is over
    return this;
  }

  /** Load everything anew in a second, once for all who ask. */
  loadSoon() {
    this.loading ??= setTimeout(() => {
      this.loading = null;
      this.load().catch(tell);
    }, 1000);
  }

  /** Fetch the nodes that are new, once for what comes in one breath. */
  refresh() {
    this.fetching ??= new Promise((resume) => setTimeout(resume, 30)).then(async () => {
      this.fetching = null;
      const last = this.nodes.value.at(-1);
      try {
        const fresh = await get(`${at("sessions", this.id, "nodes")}?after=${last?.seq ?? 0}&parent=${last?.id ?? ""}`);
        if (fresh.whole) return await this.load();
        if (fresh.nodes.length) {
          batch(() => {
            const known = new Set(this.nodes.value.map((node) => node.id));
            this.nodes.value = [...this.nodes.value, ...fresh.nodes.filter((node) => !known.has(node.id))];
            if (fresh.nodes.some((node) => node.kind === "assistant")) this.live.value = null;
          });
        }
      } catch (error) {
        tell(error);
      }
    });
    return this.fetching;
  }

  /** Ask for what nodes do not hold: nothing waits for it. */
  measure() {
    get(`${at("sessions", this.id)}/outcomes`).then((found) => batch(() => {
      this.outcomes.value = found;
      this.turns.value = found.turns;
      this.filled.value = found.filled;
    }), () => {});
  }

  async older() {
    const first = this.nodes.value[0];
    const { nodes, more } = await get(`${at("sessions", this.id, "nodes")}?before=${first.seq}`);
    batch(() => {
      const known = new Set(this.nodes.value.map((node) => node.id)); // two may have asked
      this.nodes.value = [...nodes.filter((node) => !known.has(node.id)), ...this.nodes.value];
      this.more.value = more;
    });
  }

  /** Note which sub-agents work. */
  child({ type, session }) {
    const others = this.children.value.filter((id) => id !== session);
    if (type === "turn.start" || type === "turn.finish") this.told += 1;
    if (type === "turn.start") this.children.value = [...others, session];
    if (type === "turn.finish") this.children.value = others;
  }

  call(id, changes) {
    this.calls.value = { ...this.calls.value, [id]: { ...this.calls.value[id], ...changes } };
  }

  /** Take one event of this session. */
  take(event) {
    switch (event.type) {
      case "message.start":
        this.live.value = { id: event.message_id, text: "", reasoning: "" };
        break;
      case "text.delta":
      case "reasoning.delta": {
        const kind = event.type === "text.delta" ? "text" : "reasoning";
        const live = this.live.value ?? { id: event.message_id, text: "", reasoning: "" };
        // The text is appended to the DOM, not rendered again: only who listens is told.
        live[kind] += event.text;
        if (this.live.value !== live || live[kind].length === event.text.length) this.live.value = { ...live };
        for (const sink of this.sinks) sink(kind, event.text);
        break;
      }
      case "tool.start":
        this.call(event.call_id, { tool: event.tool, args: event.args, state: event.state, since: Date.parse(event.ts) });
        this.refresh();
        break;
      case "tool.delta":
        this.progress.value = { ...this.progress.value, [event.call_id]: ((this.progress.value[event.call_id] ?? "") + event.text).slice(-4000) };
        break;
      case "tool.result":
        this.call(event.call_id, { state: event.status, ms: event.ms });
        this.refresh();
        break;
      case "permission.asked":
        this.call(event.call_id, { state: "waiting" });
        break;
      case "permission.replied":
        this.call(event.call_id, { state: "pending" });
        break;
      case "turn.start":
        this.last.value = null;
        this.doing.value = "";
        this.refresh();
        break;
      case "turn.finish":
        this.last.value = event;
        this.measure();
        this.refresh();
        break;
      case "step.finish":
        this.filled.value = event.usage?.input ?? this.filled.value;
        this.refresh();
        break;
      case "session.status":
        if (event.status === "idle" || event.status === "busy") {
          this.told += 1;
          this.saidIdle = event.status === "idle";
          this.status.value = event.status;
        }
        this.doing.value = event.status === "retry" ? `${t("retry")}: ${event.reason ?? ""}` : "";
        if (event.status === "idle") {
          const ended = this.live.value?.id;
          this.refresh().then(() => {
            if (this.live.value?.id === ended) this.live.value = null; // its node stands there now
            this.sendNext();
          });
        }
        break;
      case "compaction":
        this.doing.value = event.state === "pending" ? t("compacting") : "";
        if (event.state === "failed") notice.value = `${t("notCompacted")}: ${event.reason ?? ""}`;
        if (event.state !== "pending") this.load().catch(tell);
        break;
      case "session.label":
      case "session.mode":
      case "session.agent":
      case "session.model":
        this.load().catch(tell);
        break;
      case "step.start":
        this.doing.value = "";
        break;
      case "error":
        notice.value = event.next ? `${event.message} · ${event.next}` : event.message;
        break;
      case "session.notice":
      case "store.notice":
        notice.value = event.message || event.text || "";
        break;
    }
  }

  // ------------------------------------------------------------ prompts: what is typed is kept until the server has it

  keep(queue) {
    this.queue.value = queue;
    localStorage.setItem(`queue.${this.id}`, JSON.stringify(queue));
  }

  /** Send a prompt, or run the slash command that it is. */
  async prompt(text, attached = {}) {
    const [, name, rest] = /^\s*\/([\p{L}\p{N}_:.@?-]+)(?:\s+([^]*))?$/u.exec(text) ?? [];
    if (!name) return this.send(text, attached);
    try {
      await this.command(name, rest ?? "");
    } catch (error) {
      draft.value = { session: this.id, text }; // it never becomes a prompt, also if there is no such command
      tell(error);
    }
  }

  /** Let the model reason for so long, from the next prompt on. */
  choose(effort) {
    this.effort.value = this.chosen = effort;
  }

  /** Send a prompt as it is. */
  send(text, more = {}) {
    this.toEnd?.();
    const effort = this.chosen ? { effort: this.chosen } : {};
    this.chosen = null;
    this.keep([...this.queue.value, { key: newKey(), text, ...effort, ...more }]);
    this.sendNext();
  }

  async command(name, text) {
    const path = `${at("sessions", this.id)}/command`;
    const said = await post(path, { name, text }).catch(async (error) => {
      if (error.code !== "confirm_required" || !(await ask(t("confirmFull")))) throw error;
      return post(path, { name, text, confirm: true });
    });
    notice.value = said.text;
    await this.load();
    if (said.prompt) this.send(said.prompt, said.foreign ? { typed: 0 } : {});
  }

  async sendNext() {
    const [first] = this.queue.value;
    if (!first || this.sending || this.status.value !== "idle") return;
    this.sending = true;
    const { key, ...body } = first;
    try {
      const { turn, text } = await post(`${at("sessions", this.id)}/prompt`, body, { headers: { "Idempotency-Key": key } });
      if (turn === null) notice.value = text; // it was a command
      this.keep(this.queue.value.filter((one) => one.key !== key));
    } catch (error) {
      if (error.status === 409) {
        this.status.value = "busy";
        this.loadSoon(); // the other turn may have ended before this answer came
      } else if (error.status) {
        this.keep(this.queue.value.filter((one) => one.key !== key));
        draft.value = { session: this.id, text: first.text };
        tell(error);
      }
    } finally {
      this.sending = false;
    }
  }

  /** Go on with what a turn has left. */
  resume() {
    return post(`${at("sessions", this.id)}/resume`).catch(tell);
  }

  stop() {
    return post(`${at("sessions", this.id)}/cancel`).catch(tell);
  }
}

export const draft = signal(null); // text that goes back into the input

/** A key that no other prompt has; `randomUUID` is only there over HTTPS and on this machine. */
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Change a session on the server. */
export async function patch(changed, body) {
  try {
    await send("PATCH", at("sessions", changed.id), body);
    await changed.load();
  } catch (error) {
    tell(error);
  }
}

const shown = new Map(); // every session on the screen, by id

/** Return a session that is kept up to date; call `drop` when it leaves the screen. */
export function show(id) {
  if (!shown.has(id)) {
    shown.set(id, new Shown(id));
    shown.get(id).load().catch(tell);
  }
  return shown.get(id);
}

export function drop(id) {
  if (open.value?.id !== id) shown.delete(id);
}

/** Show a session, or none; `node` is what is looked for in it. */
export function choose(id, node = "") {
  const before = open.value?.id;
  if (id && before !== id) history.pushState(null, "", `#${id}`); // the way back of a phone leads back
  else if (!id) history.replaceState(null, "", location.pathname);
  open.value = id ? show(id) : null;
  if (id) open.value.wanted.value = node;
  if (before && before !== id) drop(before);
}

export const asking = computed(() => approvals.value.length > 0);

const answered = new Set(); // questions: an answer of the server that is older than theirs may still bring them
const merged = (known, more) => [...known, ...more.filter((one) => !known.some((other) => other.id === one.id))].filter((one) => !answered.has(one.id));

export function tell(error) {
  notice.value = error instanceof TypeError ? t("offline") : error.next ? `${error.message} · ${error.next}` : error.message;
}

/** A call's arguments, which a model wrote, as an object or the text that they are. */
export function parsed(text) {
  if (typeof text !== "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return { "": text };
  }
}

export async function listSessions() {
  const rows = await get("/sessions?limit=200");
  batch(() => {
    sessions.value = rows;
    running.value = new Set(rows.filter((row) => row.busy).map((row) => row.id));
  });
}

let listing = null;
const relist = () => {
  listing ??= setTimeout(() => {
    listing = null;
    listSessions().catch(tell);
  }, 200);
};

async function everything() {
  const before = approvals.value;
  await Promise.all([
    listSessions(),
    get("/approvals?state=pending").then((all) => (approvals.value = merged(all, approvals.value.filter((one) => !before.includes(one))))),
    ...[...shown.values()].map((one) => one.load()),
  ]);
}

async function asked(event) {
  if (event.type === "permission.asked") {
    const one = await get(at("approvals", event.approval_id));
    if (one.state === "pending") approvals.value = merged(approvals.value, [one]);
  } else {
    answered.add(event.approval_id);
    approvals.value = merged(approvals.value, []);
  }
}

export const listeners = new Set(); // who is told of each event

function seen(event) {
  if (event.seq != null) lastId = event.seq;
  if (event.type === "reset" || (event.type === "open" && event.started !== seen.server)) {
    // a server that was started anew: the end of what the one before was doing is told by nobody
    if (event.type === "open") seen.server = event.started;
    everything().catch(tell);
    return;
  }
  if (["turn.start", "turn.finish", "session.deleted", "session.label", "session.title"].includes(event.type)) relist();
  if (event.type.startsWith("permission.")) asked(event).catch(tell);
  if (event.type === "reload") {
    notice.value = `${t("reload")}: ${event.changed.map((one) => `${one.name} ${one.change}`).join(", ")}`;
    reloads.value = [event, ...reloads.value].slice(0, 20);
  }
  if (event.type === "session.status" && (event.status === "idle" || event.status === "busy")) {
    const now = new Set(running.value);
    now[event.status === "busy" ? "add" : "delete"](event.session);
    running.value = now;
  }
  for (const listener of listeners) listener(event);
  if (event.parent) shown.get(event.parent)?.child(event);
  shown.get(event.session)?.take(event);
}

/** Begin to follow the server; never ends but by a token that counts no more. */
export function begin() {
  return follow(
    () => lastId,
    seen,
    (there) => {
      if (there && !online.value) for (const one of shown.values()) one.sendNext();
      online.value = there;
    },
  );
}
