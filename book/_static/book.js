// Displayed formulas that are a little wider than their place are set smaller; the others scroll, from their beginning.
const smallest = 0.75

function fitDisplays() {
  for (const formula of document.querySelectorAll(".bd-article .katex-display > .katex")) {
    formula.style.removeProperty("font-size")
    const sides = [...formula.querySelectorAll(".katex-base")].map(part => part.getBoundingClientRect()).filter(box => box.width)
    const width = Math.max(...sides.map(box => box.right)) - Math.min(...sides.map(box => box.left))
    const share = (formula.parentElement.clientWidth - 2) / width
    if (share < 1 && share >= smallest) formula.style.fontSize = `${Math.floor(106 * share)}%`
  }
}

// Formulas in the text cannot break: those wider than their column get the class "wide" and scroll.
const blocks = "p, li, td, th, dd, dt, figcaption, h1, h2, h3, h4, .admonition-title"

function markWide() {
  for (const formula of document.querySelectorAll(".bd-article span.math > .katex")) {
    formula.classList.remove("wide")
    const block = formula.closest(blocks)
    const style = block && getComputedStyle(block)
    const room = block && block.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
    const whole = formula.closest(".together") ?? formula // with its full stop
    if (block && block.clientWidth > 0 && whole.getBoundingClientRect().width > room) formula.classList.add("wide")
  }
}

// A line breaks neither between a formula and the comma after it nor between a bracket and the formula after that.
function keepTogether() {
  for (const formula of document.querySelectorAll(".bd-article span.math")) {
    const [before, after] = [formula.previousSibling, formula.nextSibling]
    const opening = before?.nodeType === 3 && /[(\[“‘]+$/.exec(before.data)?.[0]
    const closing = after?.nodeType === 3 && /^[,.;:!?)\]”’]+(?=\s|$)/.exec(after.data)?.[0]
    if (!opening && !closing) continue
    const together = document.createElement("span")
    together.className = "together"
    formula.replaceWith(together)
    together.append(opening || "", formula, closing || "")
    if (opening) before.data = before.data.slice(0, -opening.length)
    if (closing) after.data = after.data.slice(closing.length)
  }
}

// Nor does it break between a number and its unit, a per cent sign or the n of "0.63 n", nor around ±, nor inside an
// interval, "(-1 to 2)". Tables of numbers have narrow columns: they break where they can.
function keepUnits() {
  const article = document.querySelector(".bd-article")
  if (!article) return
  const other = node => node.nodeType === 1 && node.matches(".katex, pre, code, table.numbers, script, style")
  const texts = document.createTreeWalker(article, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, node =>
    other(node) ? NodeFilter.FILTER_REJECT : node.nodeType === 1 ? NodeFilter.FILTER_SKIP : NodeFilter.FILTER_ACCEPT)
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const glued = text.previousSibling?.nodeType === 1 && text.previousSibling.matches(".pasted-text")
    let data = text.data.replace(/(?<=\d) (?=[%±])|(?<=±) (?=\d)|(?<=\([+-]?[\d.]+(?: to)?) (?=(?:to )?[+-]?[\d.]+\))/g, "\u00a0")
    const unit = /^ %/.test(data) || (data === " " && text.nextSibling?.matches?.("span.math, .together"))
    if (glued && unit) data = `\u00a0${data.slice(1)}`
    if (data !== text.data) text.data = data
  }
}

// In tables of numbers columns of words stand left, numbers right; in the first column, of names, a word is enough.
function alignWords() {
  for (const table of document.querySelectorAll("table.numbers")) {
    const rows = [...table.rows].filter(row => row.closest("tbody"))
    for (let column = 0; column < (rows[0]?.cells.length ?? 0); column++) {
      const cells = rows.map(row => row.cells[column]).filter(cell => cell && !/^[–-]?$/.test(cell.textContent.trim()))
      const named = column === 0 && cells.some(cell => /\p{L}{2}/u.test(cell.textContent))
      if (named || (cells.length && cells.every(cell => /^[^\d.+–−<>≤≥±-]/.test(cell.textContent.trim()))))
        for (const row of table.rows) row.cells[column]?.classList.add("words")
    }
  }
}

function arrange() {
  keepTogether()
  keepUnits()
  alignWords()
}
if (document.readyState === "loading") addEventListener("DOMContentLoaded", arrange)
else arrange()

// What scrolls sideways can be reached, and scrolled, by keyboard.
const boxes = "pre, .katex, div.math, .table-box, .pst-scrollable-table-container, .output, .tableblock"

function markScrollable() {
  for (const box of document.querySelectorAll(boxes)) {
    const { overflowX, overflowY } = getComputedStyle(box)
    const scrolls =
      (/auto|scroll/.test(overflowX) && box.scrollWidth > box.clientWidth) ||
      (/auto|scroll/.test(overflowY) && box.scrollHeight > box.clientHeight)
    if (scrolls) box.tabIndex = 0
    else box.removeAttribute("tabindex")
  }
}

function mark() {
  fitDisplays()
  markWide()
  markScrollable()
}

let due = false

// Once for all that is unfolded before the next frame: it lays out the page.
function markSoon() {
  if (due) return
  due = true
  requestAnimationFrame(() => {
    due = false
    mark()
  })
}

addEventListener("load", async () => {
  await document.fonts.ready // formulas have their widths then
  mark()
  addEventListener("resize", markSoon)
  addEventListener("click", markSoon) // what is unfolded
  document.addEventListener("toggle", markSoon, true)
})

// On paper proofs are unfolded and the theme is light; afterwards all is as it was.
let unfolded = []
let theme

addEventListener("beforeprint", () => {
  unfolded.push(...document.querySelectorAll(".bd-article details.sd-dropdown:not([open])"))
  for (const proof of unfolded) proof.open = true
  theme ??= document.documentElement.dataset.theme
  document.documentElement.dataset.theme = "light"
  mark()
})
addEventListener("afterprint", () => {
  for (const proof of unfolded) proof.open = false
  unfolded = []
  if (theme) document.documentElement.dataset.theme = theme
  theme = undefined
})
