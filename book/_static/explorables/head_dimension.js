// Explorable: what a sequence length and a head dimension allow, on the curve of the collapse.
"use strict"
{
  const data = () => Explorables.data.head_dimension
  const { chebyshev, place } = Explorables
  // Bound / n, the normal quantile of 1 - 1/n and the saturated head dimension: polynomials of the logarithms.
  const bound = (n, d_h) => chebyshev(data().bound.map(row => chebyshev(row, place(d_h, data().head_dims))), place(n, data().lengths))
  const quantile = n => chebyshev(data().quantile, place(n, data().lengths))
  const saturation = (n, gap) => Math.max(1, Math.exp(chebyshev(data().saturation[gap], place(n, data().lengths))))

  Explorables.kinds.head_dimension = {
    title: "Calculate: what a head dimension allows",
    start: () => ({ model: data().models[0].name, n: data().models[0].n, d_h: data().models[0].d_h }),
    controls: () => [
      { key: "model", label: "Model", options: [["", "own numbers"], ...data().models.map(({ name }) => [name, name])] },
      { key: "n", label: `Tokens n (${data().lengths.map(n => n.toLocaleString("en")).join(" to ")})`, least: data().lengths[0], most: data().lengths[1] },
      { key: "d_h", label: `Head dimension (${data().head_dims.map(d => d.toLocaleString("en")).join(" to ")})`, least: data().head_dims[0], most: data().head_dims[1] },
    ],
    changed: (state, key) => {
      const model = data().models.find(({ name }) => name === state.model)
      if (key === "model" && model) [state.n, state.d_h] = [model.n, model.d_h]
      if ((key === "n" || key === "d_h") && model && (model.n !== state.n || model.d_h !== state.d_h)) state.model = ""
    },

    compute: ({ n, d_h }) => {
      const barrier = Explorables.barrier(n, false) / n, found = bound(n, d_h), v = quantile(n) ** 4 / (2 * d_h)
      return {
        bound: found, barrier, loss: barrier - found, v, limit: Explorables.limit(v, false),
        saturation: Object.fromEntries(Object.keys(data().saturation).map(gap => [gap, saturation(n, gap)])),
      }
    },

    setup: picture => {
      const { make } = Explorables
      picture.svg = make("svg", { viewBox: "0 0 640 280", role: "img", "aria-label": "The curve of the collapse and the place of this head on it; the text below gives the numbers" })
      picture.append(make("div", {}, picture.svg))
      picture.classList.add("explorable-wide")
    },

    draw: (picture, { n, d_h }, { bound, barrier, v, saturation }) => {
      const { make } = Explorables, { svg } = picture
      const [left, right, top, bottom] = [56, 600, 16, 224], ends = [0.005, 400]
      const x = v => left + (right - left) * Math.log(Math.min(Math.max(v, ends[0]), ends[1]) / ends[0]) / Math.log(ends[1] / ends[0])
      const y = share => bottom - (bottom - top) * share / 0.7
      const curve = Array.from({ length: 81 }, (_, i) => ends[0] * (ends[1] / ends[0]) ** (i / 80))
      const mark = Object.entries(saturation).map(([gap, d]) => {
        const at = x(v * d_h / d), height = y(barrier - Number(gap))
        return make("g", {}, make("path", { class: "tickmark", d: `M${at} ${height - 7}V${height + 7}` }),
          make("text", { class: "note", x: at - 6, y: height + 19, "text-anchor": "end" }, `gap ${gap}`))
      })
      svg.replaceChildren(
        make("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }),
        ...[0, 0.2, 0.4, 0.6].map(share => make("text", { class: "tick", x: left - 8, y: y(share) + 4, "text-anchor": "end" }, String(share))),
        ...[0.01, 0.1, 1, 10, 100].map(value => make("text", { class: "tick", x: x(value), y: bottom + 18, "text-anchor": "middle" }, String(value))),
        make("text", { class: "tick", x: (left + right) / 2, y: bottom + 42, "text-anchor": "middle" }, "v = aₙ⁴ / (2 d_h): larger heads to the left, longer sequences to the right"),
        make("line", { class: "limit", x1: left, x2: right, y1: y(barrier), y2: y(barrier) }),
        make("text", { class: "note", x: right, y: y(barrier) - 5, "text-anchor": "end" }, "barrier / n"),
        make("path", { class: "curve", d: "M" + curve.map(v => `${x(v).toFixed(1)} ${y(Explorables.limit(v, false)).toFixed(1)}`).join("L") }),
        make("text", { class: "note", x: x(14), y: y(Explorables.limit(14, false)) - 8 }, "limit F(v)"),
        ...mark, make("circle", { class: "here", cx: x(v), cy: y(bound), r: 7 }))
    },

    rows: ({ n }, { bound, barrier, loss, saturation }) => [
      ["Bound on the mean rank / n", `${bound.toFixed(3)} (${Math.round(bound * n).toLocaleString("en")} tokens)`, bound, "result"],
      ["Barrier / n", barrier.toFixed(3), barrier, "bound"],
      ["Lost to unequal lengths of keys", loss.toFixed(3), loss, "other"],
      ...Object.entries(saturation).map(([gap, d]) => [`Head dimension for a gap of ${gap}`, Math.ceil(d - 1e-3).toLocaleString("en"), null]),
    ],

    describe: ({ n, d_h, model }, { bound, barrier, limit, saturation, v }) => {
      const known = data().models.find(({ name }) => name === model)
      return `${known ? `${known.name}: ` : ""}${n.toLocaleString("en")} tokens, head dimension ${d_h.toLocaleString("en")}. At initialisation a head without mask attends on average to at most `
        + `${(100 * bound).toFixed(1)} % of the tokens; the barrier is ${(100 * barrier).toFixed(1)} %, the limit curve gives ${(100 * limit).toFixed(1)} % at v = ${v.toPrecision(3)}. `
        + `To come within 0.05 of the barrier a head needs at least ${Math.ceil(saturation["0.05"] - 1e-3).toLocaleString("en")} dimensions.`
        + (known?.causal ? " This model masks the future, which lowers the barrier to one half: see the column for causal masks in the table above." : "")
    },
  }
}
