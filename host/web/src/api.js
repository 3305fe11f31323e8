// Requests and the stream of events. The token is this browser's own, for all its tabs; there is no cookie.

export const TOKEN = "moryflow.token";
let token = localStorage.getItem(TOKEN) || "";

/** What the server said no with: status, code, message, next. */
export class ApiError extends Error {
  constructor(status, { code = "", message = "", next = "" }) {
    super(message || code || String(status));
    Object.assign(this, { status, code, next });
  }
}

/** Exchange the one-time code of the link, once, and take it out of the address. Return whether there is a token. */
export async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname);
    try {
      token = (await send("POST", "/code", { code })).token;
      localStorage.setItem(TOKEN, token);
    } catch (error) {
      if (!token || error.code !== "code_used") throw error; // an old link, in a browser that is let in already
    }
  }
  return Boolean(token);
}

/** Ask for JSON, or with `raw` for the response. */
export async function send(method, path, body, { headers = {}, raw = false, signal } = {}) {
  const options = { method, headers: { ...headers }, signal, cache: "no-store" };
  if (token) options.headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const reply = await fetch(path, options);
  if (!reply.ok) throw new ApiError(reply.status, await reply.json().catch(() => ({})));
  return raw ? reply : reply.json();
}

export const get = (path) => send("GET", path);
export const post = (path, body = {}, more) => send("POST", path, body, more);
export const at = (...parts) => "/" + parts.map(encodeURIComponent).join("/");

const SILENCE = 25_000; // milliseconds without a byte after which the server hangs: it says something every ten seconds
const PAUSES = [300, 600, 1200, 2500, 5000];

/**
 * Follow all sessions for ever: `seen` gets each event, `state` whether the server is there.
 * After a break it goes on with what came after the last number; the server keeps it.
 */
export async function follow(last, seen, state) {
  for (let failures = 0; ; ) {
    const hangs = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => hangs.abort(), SILENCE);
    };
    try {
      heard();
      const headers = last() === null ? {} : { "Last-Event-ID": last() };
      const reply = await send("GET", "/events", undefined, { headers, raw: true, signal: hangs.signal });
      state(true);
      failures = 0;
      for await (const event of frames(reply.body, heard)) seen(event);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) throw error;
    } finally {
      clearTimeout(timer);
    }
    state(false);
    await new Promise((resume) => setTimeout(resume, PAUSES[Math.min(failures++, PAUSES.length - 1)]));
  }
}

/** Yield the events of a stream of server-sent events. */
async function* frames(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}
