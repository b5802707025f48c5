// Explorable: the attention matrix of one random head.
"use strict"
Explorables.kinds.attention = {
  title: "Explore: the attention matrix of a random head",
  start: () => ({ n: 64, d_h: 16, temperature: 0, mask: "none", tolerance: 0.01, seed: 1 }),
  controls: () => {
    const { lengths, head_dims, temperatures, tolerances } = Explorables.data.attention
    return [
      { key: "n", label: "Tokens n", values: lengths },
      { key: "d_h", label: "Head dimension", values: head_dims },
      { key: "temperature", label: "Temperature", values: temperatures, show: t => t === 0 ? "0 (hardmax)" : `${t} √d_h` },
      { key: "tolerance", label: "Tolerance δ", values: tolerances },
      { key: "mask", label: "Mask", options: [["none", "none"], ["causal", "causal"]] },
      { key: "seed", label: "Seed (0 to 999)", least: 0, most: 999 },
    ]
  },

  compute: ({ n, d_h, temperature, mask, tolerance, seed }) => {
    const causal = mask === "causal", drawn = Explorables.normals(seed, 2 * n * d_h)
    const q = drawn.subarray(0, n * d_h), k = drawn.subarray(n * d_h)
    const { weights, chosen } = Explorables.attend(q, k, n, d_h, temperature * Math.sqrt(d_h), causal)
    const attended = new Set(chosen), values = Explorables.singularValues(weights, n)
    const { lengths, head_dims, bounds } = Explorables.data.attention
    return {
      weights, values, attended,
      rank: attended.size,
      numericalRank: values.filter(value => value >= tolerance).length,
      bound: bounds[mask][lengths.indexOf(n)][head_dims.indexOf(d_h)],
      barrier: Explorables.barrier(n, causal),
    }
  },

  setup: picture => {
    const make = Explorables.make, canvas = make("canvas", { role: "img", "aria-label": "Attention matrix; the text below describes it" })
    const spectrum = make("svg", { viewBox: "0 0 360 300", role: "img", "aria-label": "Singular values on a logarithmic scale; the text below counts them" })
    picture.append(make("div", {}, canvas), make("div", {}, spectrum))
    Object.assign(picture, { canvas, spectrum })
  },

  draw: (picture, { n, tolerance }, { weights, values, attended }) => {
    const { canvas, spectrum: svg } = picture, cell = Math.floor(720 / n), margin = 28
    canvas.width = n * cell
    canvas.height = n * cell + margin
    const pen = canvas.getContext("2d"), ink = Explorables.colour("--pst-color-text-base"), empty = Explorables.colour("--book-finding")
    pen.fillStyle = empty
    for (let j = 0; j < n; j++) if (!attended.has(j)) {
      pen.globalAlpha = 0.16
      pen.fillRect(j * cell, margin, cell, n * cell)
      pen.globalAlpha = 1
      const width = Math.max(5, Math.min(cell, 22)), x = (j + 0.5) * cell
      pen.beginPath()
      pen.moveTo(x - width / 2, 4)
      pen.lineTo(x + width / 2, 4)
      pen.lineTo(x, 22)
      pen.fill()
    }
    pen.fillStyle = ink
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (weights[i * n + j] > 1e-4) {
      pen.globalAlpha = Math.sqrt(weights[i * n + j])
      pen.fillRect(j * cell, margin + i * cell, cell, cell)
    }
    pen.globalAlpha = 1
    pen.strokeStyle = Explorables.colour("--pst-color-text-muted")
    pen.lineWidth = 2
    pen.strokeRect(1, margin + 1, n * cell - 2, n * cell - 2)

    const { make } = Explorables
    const [left, right, top, bottom] = [46, 350, 14, 262], [high, low] = [1.2, -7]
    const x = index => left + (right - left) * (index + 0.5) / n
    const y = value => top + (bottom - top) * (high - Math.max(low, Math.log10(Math.max(value, 1e-300)))) / (high - low)
    const dot = (value, i) => `M${x(i).toFixed(1)} ${y(value).toFixed(1)}h0`
    const path = (kind, keep) => make("path", { class: kind, d: [...values].map((v, i) => keep(v) ? dot(v, i) : "").join("") })
    const line = y(tolerance)
    svg.replaceChildren(
      make("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }),
      ...[0, -2, -4, -6].map(power => make("text", { class: "tick", x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end" },
        power ? `1e−${-power}` : "1")),
      make("line", { class: "limit", x1: left, x2: right, y1: line, y2: line }),
      make("text", { class: "note", x: right, y: line - 6, "text-anchor": "end" }, `δ = ${tolerance}`),
      path("dots counted", v => v >= tolerance),
      path("dots", v => v < tolerance && v > 10 ** low),
      make("text", { class: "tick", x: (left + right) / 2, y: 290, "text-anchor": "middle" }, "singular values, largest first"),
    )
  },

  rows: ({ n, mask, tolerance }, { rank, numericalRank, bound, barrier }) => [
    ["Attended to (hardmax rank)", `${rank} of ${n}`, rank / n, "result"],
    ["Mean of random heads, at most", bound.toFixed(1), bound / n, "bound"],
    [mask === "causal" ? "Limit for large heads" : "Barrier", barrier.toFixed(1), barrier / n, "bound"],
    [`Singular values ≥ ${tolerance}`, `${numericalRank} of ${n}`, numericalRank / n, "other"],
  ],

  describe: ({ n, d_h, temperature, mask, tolerance, seed }, { rank, numericalRank, bound, barrier }) =>
    `A random head of dimension ${d_h} on ${n} tokens, ${mask === "causal" ? "causal mask" : "no mask"}, seed ${seed}. `
    + `${rank === 1 ? "1 token is" : `${rank} tokens are`} attended to by some query, ${n - rank} by none. Such heads attend to at most ${bound.toFixed(1)} on average; `
    + `${mask === "causal" ? "the limit for large heads" : "the barrier"} is ${barrier.toFixed(1)}. `
    + `${temperature === 0 ? "As a hardmax" : `At temperature ${temperature} √d_h`} the matrix has ${numericalRank} singular value${numericalRank === 1 ? "" : "s"} of at least ${tolerance}.`,
}
