import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";
const [vault, ...command] = process.argv.slice(2);
const child = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const seen = [], asked = [], served = [];
const app = acp.client()
  .onRequest("session/request_permission", ({ params }) => {
    asked.push(params);
    return { outcome: { outcome: "selected", optionId: params.options.find((o) => o.kind === "allow_once").optionId } };
  })
  .onRequest("fs/read_text_file", ({ params }) => { served.push("read"); return { content: readFileSync(params.path, "utf8") }; })
  .onRequest("fs/write_text_file", ({ params }) => { served.push("write"); writeFileSync(params.path, params.content); return {}; })
  .onNotification("session/update", ({ params }) => { seen.push(params.update); });
await app.connectWith(stream, async (agent) => {
  const about = await agent.request("initialize", { protocolVersion: 1, clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true, auth: { terminal: true }, session: { notices: {} } } });
  const { sessionId } = await agent.request("session/new", { cwd: vault, mcpServers: [] });
  const reasons = [];
  for (let turn = 0; turn < 3; turn++)
    reasons.push((await agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text: "Go on." }] })).stopReason);
  await agent.request("session/load", { sessionId, cwd: vault, mcpServers: [] });
  const listed = await agent.request("session/list", { cwd: vault });
  let refused = 0;
  try { await agent.request("session/nothing", {}); } catch (error) { refused = error.code; }
  console.log(JSON.stringify({ version: about.protocolVersion, reasons, asked: asked.length, refused, served,
    kinds: [...new Set(seen.map((one) => one.sessionUpdate))].sort(), listed: listed.sessions.length }));
});
child.stdin.end();
