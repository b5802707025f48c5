// The ledger's filters: by part, kind, verdict, paper and words. Without scripts the page shows every claim.
addEventListener("DOMContentLoaded", () => {
  const rows = [...document.querySelectorAll("tr.claim-row")]
  if (!rows.length) return
  const of = (row, name) => [...row.classList].find(one => one.startsWith(`${name}-`))?.slice(name.length + 1) ?? ""
  const words = {
    paper: { rank: "rank of attention", convex: "convex attention" },
    verdict: { none: "bears on no statement of a paper" },
  }
  const box = document.createElement("form"), count = document.createElement("p"), fields = {}
  box.className = "ledger-filters"
  box.setAttribute("aria-label", "Filter the claims")
  box.addEventListener("submit", event => event.preventDefault())
  count.className = "ledger-count"
  count.setAttribute("aria-live", "polite")
  const field = (name, label, control) => {
    const line = document.createElement("label")
    control.id = `ledger-${name}`
    line.htmlFor = control.id
    line.append(label)
    const cell = document.createElement("div")
    cell.append(line, control)
    box.append(cell)
    fields[name] = control
    control.addEventListener("input", show)
  }
  for (const [name, label] of [["part", "Part"], ["kind", "Kind"], ["verdict", "Verdict"], ["paper", "Paper"]]) {
    const select = document.createElement("select")
    select.append(new Option("all", ""))
    for (const value of new Set(rows.map(row => of(row, name)))) {
      const text = words[name]?.[value] ?? value.replaceAll("-", " ")
      select.append(new Option(name === "part" ? text.replace(/^[ivx]+/, number => number.toUpperCase()) : text, value))
    }
    field(name, label, select)
  }
  const search = document.createElement("input")
  search.type = "search"
  field("words", "Words", search)
  box.append(count)

  function show() {
    const wanted = fields.words.value.trim().toLowerCase()
    for (const row of rows) {
      const fits = ["part", "kind", "verdict", "paper"].every(name => !fields[name].value || of(row, name) === fields[name].value)
      row.hidden = !fits || !row.textContent.toLowerCase().includes(wanted)
    }
    for (const table of document.querySelectorAll("table.ledger:not(.theorems)")) {
      const empty = [...table.querySelectorAll("tr.claim-row")].every(row => row.hidden)
      const whole = table.closest(".pst-scrollable-table-container") ?? table
      whole.hidden = empty
      const title = whole.previousElementSibling
      if (title?.classList.contains("rubric")) title.hidden = empty
    }
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} claims`
  }
  const first = rows[0].closest("table"), whole = first.closest(".pst-scrollable-table-container") ?? first
  const title = whole.previousElementSibling
  ;(title?.classList.contains("rubric") ? title : whole).before(box)
  show()
})
