// Formulas: \( in the text \) and \[ displayed \] become what KaTeX makes of them. One that it cannot read stays as it
// was written, in the class "formula-error", which the browser test looks for.
for (const place of document.querySelectorAll(".math")) {
  const source = [...place.childNodes].find(node => node.nodeType === 3 && node.data.trim())
  const [, open, inner] = /^\s*\\([([])([^]*)\\[)\]]\s*$/.exec(source?.data ?? "") ?? [null, "[", source?.data ?? ""]
  const formula = document.createElement("span")
  try {
    katex.render(inner, formula, { displayMode: open === "[", macros: { ...window.formulaMacros }, strict: "error" })
    source.replaceWith(formula.firstChild)
  } catch (error) {
    place.classList.add("formula-error")
    place.title = String(error.message ?? error)
  }
}
