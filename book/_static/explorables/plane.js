// Explorable: keys in the plane, their hull, and the cell of the key that wins a query.
"use strict"
Explorables.kinds.plane = {
  title: "Explore: which keys can win",
  reach: 2.8,
  start: () => ({ count: 9, seed: 4, angle: 39, keys: Explorables.kinds.plane.drawn(9, 4), held: 0 }),
  controls: () => [
    { key: "angle", label: "Direction of the query", values: Array.from({ length: 120 }, (_, i) => 3 * i), show: a => `${a}°` },
    { key: "count", label: "Number of keys", values: [3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16] },
    { key: "seed", label: "Seed (0 to 999)", least: 0, most: 999 },
  ],

  // Keys of a random head of dimension 2, to two decimals, within the picture.
  drawn: (count, seed) => {
    const { reach } = Explorables.kinds.plane, drawn = Explorables.normals(seed, 2 * count)
    const inside = x => Math.max(-reach, Math.min(reach, Math.round(100 * x) / 100))
    return Array.from({ length: count }, (_, j) => [inside(drawn[2 * j]), inside(drawn[2 * j + 1])])
  },
  changed: (state, key) => {
    if (key === "count" || key === "seed") state.keys = Explorables.kinds.plane.drawn(state.count, state.seed)
    if (state.held >= state.keys.length) state.held = 0
  },

  // A corner of the hull wins the directions between the outward normals of its two edges.
  compute: ({ keys, angle }) => {
    const corners = Explorables.hull(keys), turn = 2 * Math.PI, direction = angle * Math.PI / 180
    const normal = (i, j) => Math.atan2(keys[i][0] - keys[j][0], keys[j][1] - keys[i][1])
    const cells = corners.map((corner, at) => {
      const before = corners.at(at - 1), after = corners[(at + 1) % corners.length]
      if (corners.length === 1) return { key: corner, from: 0, share: 1 }
      const from = normal(before, corner), width = ((normal(corner, after) - from) % turn + turn) % turn
      return { key: corner, from, share: width / turn }
    })
    const scores = keys.map(([x, y]) => x * Math.cos(direction) + y * Math.sin(direction))
    // Where keys tie, as those along an edge do in one direction, a corner wins, the first.
    const winner = [...corners].sort((i, j) => i - j).reduce((best, j) => scores[j] > scores[best] ? j : best)
    const never = keys.map((_, j) => j).filter(j => !corners.includes(j))
    const expected = cells.reduce((total, { share }) => total + 1 - (1 - share) ** keys.length, 0)
    return { corners, cells, winner, never, expected }
  },

  setup: (picture, state, update) => {
    const { make } = Explorables, { reach } = Explorables.kinds.plane
    const svg = make("svg", { viewBox: "0 0 400 400", class: "plane", role: "group", "aria-label": "Keys in the plane. Arrow keys move the key that has the focus." })
    picture.svg = svg
    picture.append(make("div", {}, svg), make("p", { class: "explorable-hint" },
      "Drag a key, or focus one and move it by the arrow keys (with Shift farther). A tap on an empty place moves the key chosen last there; drag the arrow's head to turn the query."))
    picture.classList.add("explorable-plane")
    const put = (x, y) => {
      const inside = value => Math.max(-reach, Math.min(reach, Math.round(100 * value) / 100))
      state.keys[state.held] = [inside(x), inside(y)]
      update()
    }
    const at = event => {
      const box = svg.getBoundingClientRect()
      return [((event.clientX - box.left) / box.width * 400 - 200) / 50, -((event.clientY - box.top) / box.height * 400 - 200) / 50]
    }
    let dragging = null
    svg.addEventListener("pointerdown", event => {
      const key = event.target.closest("[data-key]")
      dragging = event.target.closest(".query-head") ? "query" : "key"
      if (key) state.held = Number(key.dataset.key)
      svg.setPointerCapture(event.pointerId)
      if (dragging === "key" && !key) put(...at(event))
      else update()
    })
    svg.addEventListener("pointermove", event => {
      if (!dragging) return
      const [x, y] = at(event)
      if (dragging === "key") return put(x, y)
      state.angle = (3 * Math.round(Math.atan2(y, x) * 60 / Math.PI) + 360) % 360
      update()
    })
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { dragging = null })
    svg.addEventListener("keydown", event => {
      const key = event.target.closest("[data-key]")
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key]
      if (!key || !step) return
      event.preventDefault()
      state.held = Number(key.dataset.key)
      const size = event.shiftKey ? 0.5 : 0.1, [x, y] = state.keys[state.held]
      put(x + size * step[0], y + size * step[1])
    })
  },

  draw: (picture, { keys, angle, held }, { corners, cells, winner }) => {
    const { make } = Explorables, { svg } = picture
    const x = value => 200 + 50 * value, y = value => 200 - 50 * value
    const focused = document.activeElement?.dataset?.key
    const rim = (radius, angle) => `${(200 + radius * Math.cos(angle)).toFixed(2)} ${(200 - radius * Math.sin(angle)).toFixed(2)}`
    const arcs = cells.map(({ key, from, share }) => {
      const to = from + 2 * Math.PI * share, large = share > 0.5 ? 1 : 0
      return make("path", { class: key === winner ? "arc winning" : "arc", d: `M${rim(180, from + 0.015)}A180 180 0 ${large} 0 ${rim(180, Math.max(from + 0.016, to - 0.015))}` })
    })
    const numbers = cells.filter(({ share }) => share > 0.02).map(({ key, from, share }) => {
      const [a, b] = rim(193, from + Math.PI * share).split(" ").map(Number)
      return make("text", { class: "tick", x: a, y: b + 4, "text-anchor": "middle" }, String(key + 1))
    })
    const own = cells.find(cell => cell.key === winner)
    const wedge = own.share === 1 ? [make("circle", { class: "wedge", cx: 200, cy: 200, r: 180 })] : [make("path", { class: "wedge", d: `M200 200L${rim(180, own.from)}A180 180 0 ${own.share > 0.5 ? 1 : 0} 0 ${rim(180, own.from + 2 * Math.PI * own.share)}Z` })]
    const direction = angle * Math.PI / 180
    const marks = keys.map(([a, b], j) => {
      const corner = corners.includes(j), name = `Key ${j + 1} at ${a.toFixed(2)}, ${b.toFixed(2)}: ${corner ? "a corner of the hull" : "no corner of the hull, can never win"}`
      const shape = corner ? make("circle", { cx: x(a), cy: y(b), r: j === winner ? 8 : 5.5 })
        : make("path", { d: `M${x(a) - 5} ${y(b) - 5}l10 10m0 -10l-10 10` })
      return make("g", { "data-key": j, tabindex: 0, role: "button", "aria-label": name, "aria-pressed": String(j === held),
        class: (corner ? "corner" : "inner") + (j === winner ? " winner" : "") },
        make("circle", { class: "hold", cx: x(a), cy: y(b), r: 14 }), shape,
        make("text", { x: x(a) + 9, y: y(b) - 8 }, String(j + 1)))
    })
    svg.replaceChildren(
      ...wedge, make("circle", { class: "rim", cx: 200, cy: 200, r: 180 }), ...arcs, ...numbers,
      make("polygon", { class: "hull", points: corners.map(j => `${x(keys[j][0])},${y(keys[j][1])}`).join(" ") }),
      make("path", { class: "query", d: `M200 200L${rim(158, direction)}` }),
      make("path", { class: "query-head", d: `M${rim(176, direction)}L${rim(156, direction - 0.07)}L${rim(156, direction + 0.07)}Z` }), ...marks)
    if (focused !== undefined) svg.querySelector(`[data-key="${focused}"]`)?.focus()
  },

  rows: ({ keys }, { corners, cells, winner, expected }) => [
    ["Keys that can win", `${corners.length} of ${keys.length}`, corners.length / keys.length, "result"],
    [`Directions that key ${winner + 1} wins`, `${(100 * cells.find(cell => cell.key === winner).share).toFixed(1)} %`,
      cells.find(cell => cell.key === winner).share, "other"],
    [`Expected rank of ${keys.length} random queries`, expected.toFixed(2), expected / keys.length, "result"],
    ["Barrier, whatever the keys", Explorables.barrier(keys.length).toFixed(2), Explorables.barrier(keys.length) / keys.length, "bound"],
  ],

  describe: ({ keys, angle, held }, { corners, cells, winner, never, expected }) => {
    const list = never.map(j => j + 1).join(", ")
    return `A query in direction ${angle}° attends to key ${winner + 1}, which wins ${(100 * cells.find(cell => cell.key === winner).share).toFixed(1)} % of all directions. `
      + `Of ${keys.length} keys ${corners.length} ${corners.length === 1 ? "is a corner" : "are corners"} of the hull; `
      + `${never.length === 0 ? "every key can win" : never.length === 1 ? `key ${list} can never win` : `keys ${list} can never win`}. `
      + `${keys.length} queries in random directions attend to ${expected.toFixed(2)} keys on average. `
      + `Chosen: key ${held + 1} at (${keys[held].map(value => value.toFixed(2)).join(", ")}).`
  },
}
