// An option such as --vault is one word: a narrow page does not cut it behind its hyphens.
for (const code of document.querySelectorAll("article :not(pre) > code")) {
  if (/^-\S{1,23}$/.test(code.textContent)) code.style.whiteSpace = "nowrap";
}

// A comment says which file a block is, or that it is another terminal; readers see that above the block.
const comments = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_COMMENT);
const marks = [];
while (comments.nextNode()) marks.push(comments.currentNode);
for (const mark of marks) {
  const [, kind, name] = /^ (file|terminal): (.*) $/.exec(mark.data) ?? [];
  if (!kind) continue;
  const line = document.createElement("p");
  line.className = "block-name";
  line.textContent = kind === "file" ? name : "in a second terminal";
  mark.after(line);
}
