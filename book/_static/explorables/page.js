// What the explorables have in common: their controls, their picture, their results, and the text that follows them.
"use strict"
Explorables.make = (tag, attributes = {}, ...children) => {
  const svg = ["svg", "g", "path", "line", "circle", "text", "polygon", "rect", "title"].includes(tag)
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

// A control is { key, label, values, show } (a slider over a list), { key, label, options } (a choice),
// or { key, label, least, most } (a whole number).
Explorables.control = (id, spec, state, changed) => {
  const make = Explorables.make
  const box = make("div", { class: "explorable-control" }), label = make("label", { for: id }, spec.label)
  if (spec.options) {
    const select = make("select", { id })
    for (const [value, text] of spec.options) select.append(make("option", { value }, text))
    select.addEventListener("change", () => { state[spec.key] = select.value; changed(spec.key) })
    box.append(label, select)
    return { box, refresh: () => { select.value = state[spec.key] } }
  }
  if (spec.values) {
    const shown = make("output", { for: id })
    const slider = make("input", { id, type: "range", min: 0, max: spec.values.length - 1, step: 1 })
    slider.addEventListener("input", () => { state[spec.key] = spec.values[slider.value]; changed(spec.key) })
    label.append(" ", shown)
    box.append(label, slider)
    const refresh = () => {
      slider.value = spec.values.indexOf(state[spec.key])
      const text = (spec.show ?? String)(state[spec.key])
      shown.textContent = text
      slider.setAttribute("aria-valuetext", text)
    }
    return { box, refresh }
  }
  const field = make("input", { id, type: "number", min: spec.least, max: spec.most, step: 1, inputmode: "numeric" })
  field.addEventListener("input", () => {
    const value = Number(field.value), fits = field.value !== "" && Number.isInteger(value) && value >= spec.least && value <= spec.most
    field.setAttribute("aria-invalid", String(!fits))
    if (fits) { state[spec.key] = value; changed(spec.key) }
  })
  box.append(label, field)
  return { box, refresh: () => {
    if (document.activeElement !== field) { field.value = state[spec.key]; field.setAttribute("aria-invalid", "false") }
  } }
}

// Rows [label, value, share or null]: a table whose bars show the shares, lengths of the same unit.
Explorables.results = (table, rows) => {
  const make = Explorables.make
  table.replaceChildren(make("tbody", {}, ...rows.map(([label, value, share, kind]) => {
    const bar = make("td", { class: "explorable-bar", "aria-hidden": "true" })
    if (share != null) bar.append(make("span", { class: kind ?? "", style: `width:${(100 * Math.min(1, share)).toFixed(2)}%` }))
    return make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, value), bar)
  })))
}

// Turn every place of a page into its explorable. A kind has start (the first state), controls, setup(picture, update),
// compute(state) -> numbers, draw(picture, state, numbers), rows(state, numbers) and describe(state, numbers).
Explorables.open = () => {
  const make = Explorables.make
  for (const place of document.querySelectorAll(".explorable[data-explorable]")) {
    const name = place.dataset.explorable, kind = Explorables.kinds[name]
    if (!kind || !Explorables.data) continue
    const state = structuredClone(kind.start())
    const live = make("div", { class: "explorable-live", role: "group", "aria-label": kind.title })
    const controls = make("div", { class: "explorable-controls" }), picture = make("div", { class: "explorable-picture" })
    const table = make("table", { class: "explorable-results" })
    const text = make("p", { class: "explorable-description", "aria-live": "polite" })
    live.append(make("p", { class: "explorable-title" }, kind.title), controls, picture, table, text)
    let waiting = false
    const show = () => {
      waiting = false
      const numbers = kind.compute(state)
      for (const control of all) control.refresh()
      kind.draw(picture, state, numbers)
      Explorables.results(table, kind.rows(state, numbers))
      text.textContent = kind.describe(state, numbers)
    }
    const update = key => {
      kind.changed?.(state, key)
      if (!waiting) { waiting = true; requestAnimationFrame(show) }
    }
    const all = kind.controls().map(spec => Explorables.control(`${name}-${spec.key}`, spec, state, update))
    controls.append(...all.map(control => control.box))
    kind.setup(picture, state, update)
    place.prepend(live)
    place.classList.add("explorable-ready")
    show()
    // Canvases take their colours when they are drawn.
    new MutationObserver(() => update()).observe(document.documentElement, { attributeFilter: ["data-theme"] })
  }
}

Explorables.colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()
addEventListener("DOMContentLoaded", Explorables.open)  // deferred scripts have run by then, all of them
