#!/usr/bin/env node
// Count the words of a text, with a JSON answer. Copy it to ~/.moryflow/tools/ and make it executable.
//
// /// moryflow
// {
//   "name": "word_count",
//   "description": "Count the words of a text and name the most frequent ones.",
//   "parameters": {
//     "required": ["text"],
//     "properties": {
//       "text": {"type": "string", "description": "The text"},
//       "most": {"type": "integer", "minimum": 1, "description": "How many of the most frequent words to name; 3 unless told"}
//     }
//   }
// }
// ///
const { args } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));

const words = args.text.toLowerCase().match(/[\p{L}\p{N}']+/gu) ?? [];
const counts = new Map();
for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
const most = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, args.most ?? 3);

if (words.length === 0) {
  console.log(JSON.stringify({ error: { code: "no_words", message: "the text holds no word" } }));
} else {
  console.log(JSON.stringify({ output: { words: words.length, most: Object.fromEntries(most) }, title: `${words.length} words` }));
}
