// Bundle the page into ../moryflow/server/page, with the hash of its sources, which a test compares.
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = new URL("../moryflow/server/page/", import.meta.url);
const sources = new URL("src/", import.meta.url);

// npm notes where people give money: addresses again.
const lock = JSON.parse(readFileSync("package-lock.json"));
for (const one of Object.values(lock.packages)) delete one.funding;
writeFileSync("package-lock.json", `${JSON.stringify(lock, null, 2)}\n`);

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  entryPoints: { page: "src/main.js" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  outdir: out.pathname,
  splitting: true,
  chunkNames: "[name]",
  legalComments: "eof",
  alias: { "decode-named-character-reference": "./src/html.js" },
});
await build({ entryPoints: ["src/page.css"], minify: true, outdir: out.pathname });
for (const name of ["index.html", "icon.svg", "asking.svg"]) cpSync(new URL(name, sources), new URL(name, out));

const hash = createHash("sha256");
const files = [...readdirSync(sources).sort().map((name) => new URL(name, sources)), new URL("package-lock.json", import.meta.url)];
for (const file of files) hash.update(readFileSync(file));
writeFileSync(new URL("sources.sha256", out), `${hash.digest("hex")}\n`);
