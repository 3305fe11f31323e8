// An option such as --vault is one word: a narrow page does not cut it behind its hyphens.
for (const code of document.querySelectorAll("article :not(pre) > code")) {
  if (/^-\S{1,23}$/.test(code.textContent)) code.style.whiteSpace = "nowrap";
}
